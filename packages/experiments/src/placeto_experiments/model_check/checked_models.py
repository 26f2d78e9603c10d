"""The models of ``placeto models --check``: how large they are, and which there are."""

from dataclasses import dataclass

SMALL_BATCH = 4


@dataclass(frozen=True)
class CheckedModel:
    """A model, and the size in which it is checked.

    Attributes
    ----------
    source : text
        As for `placeto build`.
    settings : pairs of texts
        As for its ``--set``.
    """

    source: str
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def command(self) -> str:
        """The source and its settings as one text."""
        return " ".join((self.source, *(f"{name}={value}" for name, value in self.settings)))


def _all(library: str, names: str, **settings: int | str) -> tuple[CheckedModel, ...]:
    given = tuple((name, str(value)) for name, value in settings.items())
    return tuple(CheckedModel(f"{library}:{name}", given) for name in names.split())


# Each kind of architecture, in the sizes that the libraries give when nothing is said.
CHECKED_MODELS: tuple[CheckedModel, ...] = (
    *(CheckedModel(name) for name in ("inception-v3", "nasnet", "nmt-2", "nmt-4")),
    *_all(
        "timm",
        "resnet50 resnext50_32x4d seresnet50 densenet121 vgg16 efficientnet_b0 "
        "mobilenetv3_large_100 regnety_016 convnext_tiny vit_base_patch16_224 "
        "deit3_small_patch16_224 swin_tiny_patch4_window7_224 mixer_b16_224 coatnet_0_224 "
        "cait_xxs24_224 nfnet_f0 hrnet_w18",
        batch_size=SMALL_BATCH,
    ),
    *_all(
        "torchvision",
        "alexnet googlenet resnet18 wide_resnet50_2 mnasnet1_0 shufflenet_v2_x1_0 squeezenet1_1 "
        "vit_b_16 swin_v2_t maxvit_t efficientnet_v2_s deeplabv3_resnet50 r3d_18 swin3d_t",
        batch_size=SMALL_BATCH,
    ),
    *_all(
        "transformers",
        "gpt2 opt gpt_neo gptj falcon llama mistral qwen2 gemma2 phi3 bert deberta-v2 albert "
        "electra xlnet modernbert t5 bart pegasus mixtral qwen2_moe olmoe gpt_oss "
        "switch_transformers vit swin convnext segformer dinov2 mobilevit detr conditional_detr "
        "videomae dpt whisper wav2vec2 audio-spectrogram-transformer speech_to_text clip siglip "
        "llava layoutlm mamba2 recurrent_gemma",
        batch_size=SMALL_BATCH,
    ),
    *_all("transformers", "mamba rwkv", batch_size=SMALL_BATCH, sequence_length=32),
    *_all(
        "diffusers",
        "UNet2DModel UNet2DConditionModel AutoencoderKL VQModel DiTTransformer2DModel "
        "SD3Transformer2DModel PixArtTransformer2DModel",
        batch_size=SMALL_BATCH,
    ),
)
