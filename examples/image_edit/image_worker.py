"""Edits images for a policy: a worker of its own kind beside the policy, which a tool calls.

It knows nothing of Ray or agentrl. Two edits are real image processing: the colours of one image given to another
(Reinhard et al., "Color transfer between images", 2001: mean and deviation of each channel of Ruderman's l-alpha-beta space),
and convolution with a small kernel.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.float64]
"""`[height, width, 3]`, red, green and blue from 0 to 1."""

_RGB_TO_LMS = np.array([[0.3811, 0.5783, 0.0402], [0.1967, 0.7244, 0.0782], [0.0241, 0.1288, 0.8444]])
_LMS_TO_LAB = np.diag(1 / np.sqrt([3, 6, 2])) @ np.array([[1, 1, 1], [1, 1, -2], [1, -1, 0]])
_DARKEST = 1 / 255
"""Logarithms are taken."""
_KERNELS = {
    "blur": np.full((3, 3), 1 / 9),
    "sharpen": np.array([[0, -1, 0], [-1, 5, -1], [0, -1, 0]], dtype=np.float64),
    "edges": np.array([[-1, -1, -1], [-1, 8, -1], [-1, -1, -1]], dtype=np.float64),
}


class ImageEditWorker:
    """Holds a gallery, and what each episode has made of it."""

    def __init__(self, config: dict[str, Any], role: str) -> None:
        """Paint the gallery: `config["size"]` pixels wide and high."""
        self._gallery = paint_gallery(config["size"])
        self._made: dict[str, dict[str, Image]] = {}

    async def edit(self, episode_id: str, operation: str, image: str, colours_of: str | None = None) -> dict[str, Any]:
        """Make a new image and say what it looks like.

        Args:
            episode_id: whose images are looked for, beside the gallery.
            operation: `transfer_colours`, `blur`, `sharpen` or `edges`.
            image: name of the image that is edited.
            colours_of: name of the image whose colours it gets, for `transfer_colours`.
        """
        own_images = self._made.setdefault(episode_id, {})
        result = apply_edit(self._gallery | own_images, operation, image, colours_of)
        name = f"image_{len(own_images) + 1}"
        own_images[name] = result
        return {"image": name, **describe(result)}

    async def forget(self, episode_id: str) -> None:
        """Free the images of an episode."""
        self._made.pop(episode_id, None)

    async def num_kept(self) -> int:
        """Return how many episodes have images here."""
        return len(self._made)


def apply_edit(images: Mapping[str, Image], operation: str, image: str, colours_of: str | None) -> Image:
    """Make the image that a call of the tool asks for.

    Raises:
        ValueError: the policy has named what is not there; the message says what is.
    """
    if operation == "transfer_colours":
        if colours_of is None:
            raise ValueError("`transfer_colours` needs `colours_of`")
        return transfer_colours(_named(image, images), _named(colours_of, images))
    if operation in _KERNELS:
        return convolve(_named(image, images), _KERNELS[operation])
    raise ValueError(f"there is no operation `{operation}`; take transfer_colours, {', '.join(_KERNELS)}")


def paint_gallery(size: int) -> dict[str, Image]:
    """Return paintings that differ in their colours and have edges."""
    down, across = np.meshgrid(np.linspace(0, 1, size), np.linspace(0, 1, size), indexing="ij")
    sunset = np.stack([0.9 - 0.3 * down, 0.5 - 0.3 * down, 0.2 + 0.1 * across], axis=-1)
    sea = np.stack([0.1 + 0.1 * across, 0.3 + 0.2 * down, 0.6 + 0.3 * down * across], axis=-1)
    sea[size // 4 : size // 2, size // 4 : size // 2] = [0.9, 0.9, 0.95]  # a sail
    forest = np.stack([0.1 + 0.1 * down, np.where(np.sin(40 * across) > 0, 0.6, 0.3), 0.1 + 0.2 * across], axis=-1)
    snow = np.stack([0.8 + 0.1 * down, 0.8 + 0.15 * across, 0.95 - 0.1 * down], axis=-1)
    snow[size // 2 :, size // 8 : size // 3] = [0.3, 0.2, 0.1]  # a hut
    return {"sunset": sunset, "sea": sea, "forest": forest, "snow": snow}


def to_lab(image: Image) -> Image:
    """Return an image in Ruderman's l-alpha-beta space, whose channels are nearly independent in pictures of nature."""
    return np.log10(np.maximum(image, _DARKEST) @ _RGB_TO_LMS.T) @ _LMS_TO_LAB.T


def from_lab(lab: Image) -> Image:
    """Undo `to_lab`; what no screen can show is cut off."""
    lms = 10 ** (lab @ np.linalg.inv(_LMS_TO_LAB).T)
    return np.clip(lms @ np.linalg.inv(_RGB_TO_LMS).T, 0, 1)


def transfer_colours(image: Image, colours_of: Image) -> Image:
    """Give `image` the mean and deviation that `colours_of` has in each channel of l-alpha-beta."""
    lab, wanted = to_lab(image), to_lab(colours_of)
    spread = lab.std(axis=(0, 1))
    scale = np.divide(wanted.std(axis=(0, 1)), spread, out=np.ones(3), where=spread > 0)
    return from_lab((lab - lab.mean(axis=(0, 1))) * scale + wanted.mean(axis=(0, 1)))


def convolve(image: Image, kernel: NDArray[np.float64]) -> Image:
    """Return an image filtered with an odd kernel; beyond the border, the nearest pixel counts."""
    margin = len(kernel) // 2
    padded = np.pad(image, ((margin, margin), (margin, margin), (0, 0)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel.shape, axis=(0, 1))
    return np.clip(np.einsum("hwcij,ij->hwc", windows, kernel), 0, 1)


def describe(image: Image) -> dict[str, Any]:
    """Return what a policy that reads text can know of an image."""
    grey = image.mean(axis=-1)
    return {
        "height": image.shape[0],
        "width": image.shape[1],
        "mean_rgb": np.round(image.mean(axis=(0, 1)), 3).tolist(),
        "contrast": round(float(grey.std()), 3),
    }


def _named(name: str, images: Mapping[str, Image]) -> Image:
    if name not in images:
        raise ValueError(f"there is no image `{name}`; there are {', '.join(images)}")
    return images[name]
