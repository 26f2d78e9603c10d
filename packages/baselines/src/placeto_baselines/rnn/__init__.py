"""The recurrent policy of Mirhoseini et al. (2017, 2018); needs torch."""
