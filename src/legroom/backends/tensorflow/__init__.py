"""Keras on TensorFlow: the only floor that imports TensorFlow.

`caps` is the exception: it is read before TensorFlow starts, and imports nothing of it.
"""
