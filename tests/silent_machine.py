"""What each process of a test runs: sums with the others, over and over, until one is lost.

Its half minute of silence lasts two seconds.
"""

import sys

import torch

from placeto_policy import PolicyError, join_processes, workers

workers.SECONDS_OF_SILENCE, workers.SECONDS_UNTIL_ASKED, workers.SECONDS_BETWEEN = 2, 1, 1

if __name__ == "__main__":
    try:
        with join_processes() as processes:
            number = torch.ones(1)
            processes.sum(number)
            print(int(number), flush=True)
            while True:
                processes.sum(number)
    except PolicyError as error:
        sys.exit(str(error))
