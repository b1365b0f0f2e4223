"""The models that predictions are measured on; at which sizes says zoo_names.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import layers
from zoo_aside import conv_lstm, graph_attention, unet_of_volumes
from zoo_later import detector, focal, language, points, segmenter, windows, xception_unet
from zoo_names import APPLICATIONS

__all__ = ["ZOO", "Entry", "compiled", "one_batch"]

SPARSE = "sparse_categorical_crossentropy"
FROM_LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@dataclasses.dataclass(frozen=True)
class Entry:
    """A model, and how it is compiled."""

    build: Callable[[], Any]
    loss: Any = SPARSE
    metrics: tuple[str, ...] = ("accuracy",)


def application(name: str, side: int, **options: Any) -> Callable[[], Any]:
    def build() -> Any:
        make = getattr(keras.applications, name)
        return make(weights=None, input_shape=(side, side, 3), classes=100, **options)

    return build


def mlp() -> Any:
    return keras.Sequential(
        [keras.Input((512,)), *[layers.Dense(1024, "relu") for _ in range(6)],
         layers.Dense(10, "softmax")]
    )  # fmt: skip


def wide_mlp() -> Any:
    return keras.Sequential(
        [keras.Input((2000,)), layers.Dense(4096, "relu"), layers.Dropout(0.5),
         layers.Dense(4096, "relu"), layers.Dense(1)]
    )  # fmt: skip


def small_cnn() -> Any:
    return keras.Sequential(
        [keras.Input((96, 96, 3)), layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D(),
         layers.Conv2D(64, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten(),
         layers.Dense(64, "relu"), layers.Dense(10, "softmax")]
    )  # fmt: skip


def norm_cnn() -> Any:
    x = inputs = keras.Input((64, 64, 3))
    for width in (32, 64, 128):
        x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        x = layers.Activation("relu")(x)
        x = layers.MaxPooling2D()(x)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(10, "softmax")(x))


def unet() -> Any:
    x = inputs = keras.Input((96, 96, 3))
    skips = []
    for width in (16, 32, 64):
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(128, 3, padding="same", activation="relu")(x)
    for width, skip in zip((64, 32, 16), reversed(skips), strict=True):
        x = layers.Conv2DTranspose(width, 2, strides=2, padding="same")(x)
        x = layers.Concatenate()([x, skip])
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
    return keras.Model(inputs, layers.Conv2D(4, 1, activation="softmax")(x))


def lstm() -> Any:
    return keras.Sequential(
        [keras.Input((60,), dtype="int32"), layers.Embedding(5000, 64), layers.LSTM(128),
         layers.Dense(2, "softmax")]
    )  # fmt: skip


def gru() -> Any:
    return keras.Sequential(
        [keras.Input((80, 32)), layers.GRU(96, return_sequences=True), layers.GRU(96),
         layers.Dense(5, "softmax")]
    )  # fmt: skip


def _attention_block(x: Any, width: int, heads: int, dropout: float = 0.1) -> Any:
    y = layers.LayerNormalization()(x)
    y = layers.MultiHeadAttention(heads, width // heads, dropout=dropout)(y, y)
    x = layers.Add()([x, y])
    y = layers.LayerNormalization()(x)
    y = layers.Dense(4 * width, "gelu")(y)
    y = layers.Dropout(dropout)(layers.Dense(width)(y))
    return layers.Add()([x, y])


def transformer(words: int = 8000, blocks: int = 4) -> Any:
    inputs = keras.Input((64,), dtype="int32")
    x = layers.Embedding(words, 128)(inputs)
    for _ in range(blocks):
        x = _attention_block(x, 128, 4)
    return keras.Model(inputs, layers.Dense(words, "softmax")(x))


def deep_transformer() -> Any:
    return transformer(words=2000, blocks=12)


def embeddings() -> Any:
    inputs = [keras.Input((1,), dtype="int32", name=f"c{i}") for i in range(6)]
    parts = [layers.Flatten()(layers.Embedding(20000, 32)(each)) for each in inputs]
    x = layers.Concatenate()(parts)
    x = layers.Dense(256, "relu")(x)
    return keras.Model(inputs, layers.Dense(1, "sigmoid")(x))


def two_inputs() -> Any:
    image, table = keras.Input((64, 64, 3), name="image"), keras.Input((20,), name="table")
    x = layers.Conv2D(32, 3, activation="relu")(image)
    x = layers.Conv2D(32, 3, strides=2, activation="relu")(x)
    x = layers.Flatten()(x)
    x = layers.Concatenate()([layers.Dense(64)(x), layers.Dense(64, "relu")(table)])
    return keras.Model({"image": image, "table": table}, layers.Dense(3, "softmax")(x))


class OwnStep(keras.Model):
    """A model with a train_step of its own."""

    def train_step(self, data: Any) -> Any:
        """As in the Keras guides."""
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def own_step() -> Any:
    x = inputs = keras.Input((64, 64, 3))
    for width in (24, 48, 96):
        x = layers.SeparableConv2D(width, 3, padding="same", activation="relu")(x)
        x = layers.AveragePooling2D(2)(x)
    return OwnStep(inputs, layers.Dense(10, "softmax")(layers.Flatten()(x)))


def vit() -> Any:
    inputs = keras.Input((64, 64, 3))
    x = layers.Conv2D(96, 8, strides=8)(inputs)
    x = layers.Reshape((64, 96))(x)
    for _ in range(4):
        x = _attention_block(x, 96, 6)
    return keras.Model(inputs, layers.Dense(10, "softmax")(layers.GlobalAveragePooling1D()(x)))


def mixer() -> Any:
    inputs = keras.Input((64, 64, 3))
    x = layers.Reshape((64, 128))(layers.Conv2D(128, 8, strides=8)(inputs))
    for _ in range(4):
        y = layers.Permute((2, 1))(layers.LayerNormalization()(x))
        y = layers.Dense(64)(layers.Dense(128, "gelu")(y))
        x = layers.Add()([x, layers.Permute((2, 1))(y)])
        y = layers.Dense(128)(layers.Dense(256, "gelu")(layers.LayerNormalization()(x)))
        x = layers.Add()([x, y])
    return keras.Model(inputs, layers.Dense(10, "softmax")(layers.GlobalAveragePooling1D()(x)))


def wavenet() -> Any:
    x = inputs = keras.Input((512, 8))
    for rate in (1, 2, 4, 8, 16):
        y = layers.Conv1D(48, 2, padding="causal", dilation_rate=rate, activation="tanh")(x)
        z = layers.Conv1D(48, 2, padding="causal", dilation_rate=rate, activation="sigmoid")(x)
        y = layers.Conv1D(48, 1)(layers.Multiply()([y, z]))
        x = y if x is inputs else layers.Add()([x, y])
    return keras.Model(inputs, layers.Dense(1)(x))


def bilstm() -> Any:
    inputs = keras.Input((40,), dtype="int32")
    x = layers.Embedding(4000, 96)(inputs)
    x = layers.Bidirectional(layers.LSTM(64, return_sequences=True))(x)
    x = layers.Bidirectional(layers.LSTM(64))(x)
    return keras.Model(inputs, layers.Dense(4, "softmax")(layers.Dropout(0.3)(x)))


def autoencoder() -> Any:
    x = inputs = keras.Input((64, 64, 3))
    for width in (32, 64):
        x = layers.Conv2D(width, 3, strides=2, padding="same", activation="relu")(x)
    for width in (64, 32):
        x = layers.UpSampling2D()(x)
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
    return keras.Model(inputs, layers.Conv2D(3, 3, padding="same", activation="sigmoid")(x))


def video() -> Any:
    return keras.Sequential(
        [keras.Input((8, 40, 40, 3)), layers.Conv3D(16, 3, activation="relu"),
         layers.MaxPooling3D((1, 2, 2)), layers.Conv3D(32, 3, activation="relu"), layers.Flatten(),
         layers.Dense(6, "softmax")]
    )  # fmt: skip


def two_towers() -> Any:
    user, item = keras.Input((12,), dtype="int32"), keras.Input((30,), dtype="int32")
    a = layers.GlobalAveragePooling1D()(layers.Embedding(30000, 48)(user))
    b = layers.GlobalMaxPooling1D()(layers.Embedding(30000, 48)(item))
    return keras.Model(
        [user, item],
        layers.Dense(1, "sigmoid")(layers.Multiply()([layers.Dense(64)(a), layers.Dense(64)(b)])),
    )


class Subclassed(keras.Model):
    """Two branches with a lambda between them, which can't be saved."""

    def __init__(self) -> None:
        super().__init__()
        self.down = layers.Conv2D(40, 5, strides=2, activation="relu")
        self.norm = layers.LayerNormalization()
        self.squash = lambda x: tf.nn.silu(x)
        self.up = layers.Conv2D(80, 3, activation="relu")
        self.pool = layers.GlobalMaxPooling2D()
        self.head = layers.Dense(7, "softmax")

    def call(self, x: Any, training: bool = False) -> Any:
        """Forward."""
        x = self.squash(self.norm(self.down(x)))
        return self.head(self.pool(self.up(x)))


def subclassed() -> Any:
    model = Subclassed()
    model.build((None, 72, 72, 3))
    return model


def frozen() -> Any:
    base = keras.applications.MobileNetV2(weights=None, input_shape=(96, 96, 3), include_top=False)
    base.trainable = False
    x = layers.GlobalAveragePooling2D()(base.output)
    return keras.Model(base.input, layers.Dense(20, "softmax")(x))


def seq2seq() -> Any:
    source, target = keras.Input((24,), dtype="int32"), keras.Input((20,), dtype="int32")
    table = layers.Embedding(3000, 64)
    _, h, c = layers.LSTM(96, return_state=True)(table(source))
    x = layers.LSTM(96, return_sequences=True)(table(target), initial_state=[h, c])
    return keras.Model([source, target], layers.Dense(3000, "softmax")(x))


def resnet_small() -> Any:
    x = inputs = keras.Input((48, 48, 3))
    x = layers.Conv2D(32, 3, padding="same")(x)
    for width in (32, 64, 128):
        for _ in range(2):
            y = layers.Conv2D(width, 3, padding="same")(x)
            y = layers.Activation("relu")(layers.BatchNormalization()(y))
            y = layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same")(y))
            if x.shape[-1] != width:
                x = layers.Conv2D(width, 1)(x)
            x = layers.Activation("relu")(layers.Add()([x, y]))
        x = layers.MaxPooling2D()(x)
    return keras.Model(inputs, layers.Dense(10, "softmax")(layers.GlobalAveragePooling2D()(x)))


ZOO = {
    "mlp": Entry(mlp),
    "wide_mlp": Entry(wide_mlp, "mse", metrics=()),
    "small_cnn": Entry(small_cnn),
    "norm_cnn": Entry(norm_cnn),
    "unet": Entry(unet),
    "lstm": Entry(lstm),
    "gru": Entry(gru),
    "transformer": Entry(transformer),
    "deep_transformer": Entry(deep_transformer),
    "embeddings": Entry(embeddings, "binary_crossentropy", metrics=()),
    "two_inputs": Entry(two_inputs),
    "own_step": Entry(own_step, metrics=()),
    "resnet_small": Entry(resnet_small),
    "ResNet50": Entry(application("ResNet50", 96)),
    "MobileNetV2": Entry(application("MobileNetV2", 96)),
    "VGG16": Entry(application("VGG16", 64)),
    "EfficientNetB0": Entry(application("EfficientNetB0", 64)),
    "vit": Entry(vit),
    "mixer": Entry(mixer),
    "wavenet": Entry(wavenet, "mse", metrics=()),
    "bilstm": Entry(bilstm),
    "seq2seq": Entry(seq2seq),
    "autoencoder": Entry(autoencoder, "mse", metrics=()),
    "video": Entry(video),
    "two_towers": Entry(two_towers, "binary_crossentropy", metrics=()),
    "subclassed": Entry(subclassed),
    "frozen": Entry(frozen),
    "DenseNet121": Entry(application("DenseNet121", 64)),
    "Xception": Entry(application("Xception", 96)),
    "InceptionV3": Entry(application("InceptionV3", 96)),
    "ResNet50V2": Entry(application("ResNet50V2", 64)),
    "MobileNetV3Small": Entry(application("MobileNetV3Small", 96)),
    "ConvNeXtTiny": Entry(application("ConvNeXtTiny", 64)),
    "EfficientNetV2B0": Entry(application("EfficientNetV2B0", 64)),
    "NASNetMobile": Entry(application("NASNetMobile", 64)),
    "unet_of_volumes": Entry(unet_of_volumes),
    "conv_lstm": Entry(conv_lstm, "mse", metrics=()),
    "graph_attention": Entry(graph_attention),
    "points": Entry(points),
    "language": Entry(language, FROM_LOGITS, metrics=()),
    "detector": Entry(detector, focal, metrics=()),
    "segmenter": Entry(segmenter, FROM_LOGITS),
    "windows": Entry(windows, FROM_LOGITS),
    "xception_unet": Entry(xception_unet),
    **{name: Entry(application(name, side)) for name, (side, _) in APPLICATIONS.items()},
}


def compiled(name: str, optimizer: Any, precision: str) -> Any:
    """Build and compile one of the models.

    Args:
        name: Its name in the zoo.
        optimizer: "sgd", "momentum", "adam" or "adamw".
        precision: A dtype policy: "float32", "mixed_float16", "mixed_bfloat16".
    """
    entry = ZOO[name]
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(precision)
    model = entry.build()
    if optimizer == "momentum":
        optimizer = keras.optimizers.SGD(momentum=0.9)
    model.compile(optimizer, entry.loss, metrics=list(entry.metrics) or None)
    return model


def one_batch(model: Any, samples: int) -> tf.data.Dataset:
    """One batch, without end, that lies in memory: no input pipeline holds anything on top.

    Its size is left open, as most sources of data leave it.
    """
    from legroom.backends.tensorflow.graph.specs import batch_specs

    embedded = [x.input_dim for x in model._flatten_layers() if hasattr(x, "input_dim")]
    most = min([1000, *(x for x in embedded if isinstance(x, int))]) if embedded else 2

    def fill(spec: tf.TensorSpec) -> tf.Tensor:
        lengths = [samples, *spec.shape[1:]]
        if spec.dtype.is_floating:
            return tf.random.uniform(lengths, dtype=spec.dtype)
        return tf.random.uniform(lengths, 0, most, spec.dtype)

    def opened(*parts: Any) -> Any:
        return keras.tree.map_structure(
            lambda part: tf.compat.v1.placeholder_with_default(part, [None, *part.shape[1:]]), parts
        )

    batch = keras.tree.map_structure(fill, next(batch_specs(model, "fit", None, None)))
    outputs = getattr(model, "outputs", None)
    if isinstance(batch[1], tf.Tensor) and batch[1].dtype.is_integer and outputs:
        batch = (batch[0], tf.random.uniform(batch[1].shape, 0, outputs[0].shape[-1], tf.int32))
    if isinstance(batch[0], list):
        batch = (tuple(batch[0]), *batch[1:])  # a data set would take a list for one array
    return tf.data.Dataset.from_tensors(batch).map(opened).repeat()
