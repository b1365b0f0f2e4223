"""A folder of images: its files, and the class of each, which is the name of its folder."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

__all__ = ["IMAGES", "is_image", "list_images"]

IMAGES = (".jpg", ".jpeg", ".png", ".gif", ".bmp")


def list_images(folder: str) -> tuple[list[str], Any, list[str]]:
    """The images below a folder.

    Returns:
        Their paths, the number of each one's class, and the names of the classes: those of the
        folders in this one, sorted, without hidden ones. No class, where the images lie in the
        folder itself.

    Raises:
        ValueError: If there are none.
    """
    entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    names = sorted(entry.name for entry in entries if entry.is_dir())
    paths: list[str] = []
    labels: list[int] = []
    for number, name in enumerate(names):
        for inside, files in _walk(os.path.join(folder, name)):
            found = [os.path.join(inside, file) for file in sorted(files) if is_image(file)]
            paths += found
            labels += [number] * len(found)
    if paths:
        return paths, np.array(labels, np.int32), names
    paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if is_image(name)]
    if not paths:
        raise ValueError(
            f"There is no image in {folder}. Expected files that end in {', '.join(IMAGES)}, in "
            "the folder or in one folder for each class."
        )
    return paths, None, []


def _walk(folder: str) -> list[tuple[str, list[str]]]:
    """The folders below one, hidden ones left out, each with its files."""
    found = []
    for inside, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found.append((inside, files))
    return sorted(found)


def is_image(name: str) -> bool:
    """Whether a file is an image, by its name."""
    return name.lower().endswith(IMAGES) and not name.startswith(".")
