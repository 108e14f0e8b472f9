"""Real photographs that ship inside the wheels of scikit-learn and scikit-image (nothing is downloaded)."""

import io
import warnings
from functools import cache

import numpy as np
from PIL import Image


@cache
def photographs() -> tuple[Image.Image, ...]:
    """Seven RGB photographs of everyday scenes, 451×300 to 741×500, most of them stored losslessly."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # third-party deprecations are not ours to fix
        import skimage.data
        from sklearn.datasets import load_sample_images

        pixels = [*load_sample_images().images]
        pixels += [skimage.data.astronaut(), skimage.data.chelsea(), skimage.data.coffee(), skimage.data.rocket()]
        pixels.append(skimage.io.imread(skimage.data.data_dir + "/motorcycle_left.png"))
    return tuple(Image.fromarray(np.asarray(image)[..., :3]) for image in pixels)


def resized(photo: Image.Image, width: int, height: int) -> Image.Image:
    """Centre crop to the aspect ratio, then resize: how the resolution variants of a data set are made."""
    scale = max(width / photo.width, height / photo.height)
    crop_width, crop_height = width / scale, height / scale
    left, top = (photo.width - crop_width) / 2, (photo.height - crop_height) / 2
    box = (left, top, left + crop_width, top + crop_height)
    return photo.resize((width, height), Image.Resampling.LANCZOS, box=box)


def real_images(width: int, height: int) -> list[Image.Image]:
    """Photographs at this size; above 512 a mosaic of them, since none that ship are larger."""
    if width <= 512:
        return [resized(photo, width, height) for photo in photographs()]
    tiles = [resized(photo, 512, 512) for photo in photographs()]
    mosaics = []
    for first in range(0, len(tiles), 2):
        mosaic = Image.new("RGB", (width, height))
        corners = [(x, y) for x in range(0, width, 512) for y in range(0, height, 512)]
        for number, corner in enumerate(corners):
            mosaic.paste(tiles[(first + number) % len(tiles)], corner)
        mosaics.append(mosaic)
    return mosaics


def encode(image: Image.Image, quality: int) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()
