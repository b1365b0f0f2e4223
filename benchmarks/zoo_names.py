"""Which models are measured at which batch sizes; apart from the models, which need Keras.

`BUILT_WITH` were looked at while the predictions were built. `SET_ASIDE` were not: they were
written down before, and first run when the rules were fixed.
"""

from __future__ import annotations

__all__ = ["APPLICATIONS", "BUILT_WITH", "LARGEST", "NAMES", "SET_ASIDE"]

BUILT_WITH = {
    "mlp": (64, 2048),
    "wide_mlp": (32, 512),
    "small_cnn": (16, 64),
    "norm_cnn": (16, 64),
    "unet": (4, 16),
    "lstm": (64, 256),
    "gru": (64, 256),
    "transformer": (8, 32),
    "embeddings": (256, 4096),
    "two_inputs": (16, 64),
    "own_step": (32, 96),
    "resnet_small": (16, 48),
    "ResNet50": (8, 24),
    "MobileNetV2": (12, 32),
    "VGG16": (8, 24),
    "EfficientNetB0": (12, 32),
    # Set aside at first; their timelines were looked at when the walk was mended.
    "two_towers": (256, 2048),
    "subclassed": (16, 48),
    "video": (8, 24),
    "bilstm": (48, 160),
    "seq2seq": (24, 96),
    # Written down later, and far off: looked into at once.
    "points": (16, 48),
    "language": (16, 48),
    "detector": (8, 24),
}
SET_ASIDE = {
    "vit": (16, 64),
    "mixer": (16, 64),
    "wavenet": (16, 64),
    "autoencoder": (16, 48),
    "frozen": (16, 64),
    "DenseNet121": (8, 24),
    "Xception": (8, 20),
    "InceptionV3": (8, 24),
    "ResNet50V2": (12, 32),
    "MobileNetV3Small": (16, 48),
    "ConvNeXtTiny": (6, 16),
    "EfficientNetV2B0": (12, 32),
    "NASNetMobile": (8, 20),
    # In the place of video, bilstm and seq2seq.
    "unet_of_volumes": (2, 8),
    "conv_lstm": (8, 32),
    "graph_attention": (16, 64),
    # Written down with points, language and detector, and left alone.
    "segmenter": (4, 16),
    "windows": (8, 32),
    "xception_unet": (4, 12),
}
# The other models that ship with Keras: the side of their pictures, and the batch sizes.
APPLICATIONS = {
    "ConvNeXtSmall": (64, (6, 16)),
    "DenseNet169": (64, (8, 24)),
    "DenseNet201": (64, (8, 20)),
    "EfficientNetB1": (64, (12, 32)),
    "EfficientNetB2": (64, (12, 32)),
    "EfficientNetB3": (64, (8, 24)),
    "EfficientNetB4": (64, (8, 20)),
    "EfficientNetB5": (64, (6, 16)),
    "EfficientNetB6": (64, (6, 12)),
    "EfficientNetV2B1": (64, (12, 32)),
    "EfficientNetV2B2": (64, (12, 32)),
    "EfficientNetV2B3": (64, (8, 24)),
    "EfficientNetV2S": (64, (8, 24)),
    "EfficientNetV2M": (64, (6, 16)),
    "InceptionResNetV2": (96, (6, 16)),
    "MobileNet": (96, (12, 32)),
    "MobileNetV3Large": (96, (12, 32)),
    "ResNet101": (64, (8, 24)),
    "ResNet101V2": (64, (8, 24)),
    "ResNet152": (64, (6, 16)),
    "ResNet152V2": (64, (6, 16)),
    "VGG19": (64, (8, 24)),
    "ConvNeXtBase": (64, (8,)),
    "ConvNeXtLarge": (64, (8,)),
    "ConvNeXtXLarge": (64, (8,)),
    "EfficientNetB7": (64, (8,)),
    "EfficientNetV2L": (64, (8,)),
    "NASNetLarge": (64, (8,)),
}
# These are measured in one way only: the largest take minutes a step here.
LARGEST = tuple(name for name, (_, sizes) in APPLICATIONS.items() if len(sizes) == 1)
SET_ASIDE |= {name: sizes for name, (_, sizes) in APPLICATIONS.items()}
NAMES = {**BUILT_WITH, **SET_ASIDE}
