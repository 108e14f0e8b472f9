"""Example code for training scripts: Python that defines `decode(path)`, which `tune` prints."""

from __future__ import annotations

PILLOW = "\ndecode = torchvision.datasets.folder.default_loader\n"
TURBOJPEG = """\
import simplejpeg


def decode(path):
    with open(path, 'rb') as file:
        return torch.from_numpy(simplejpeg.decode_jpeg(file.read())).permute(2, 0, 1)
"""
TORCHVISION = """

def decode(path):
    return torchvision.io.decode_image(path, mode='RGB')
"""
OPENCV = """\
import cv2

cv2.setNumThreads(0)


def decode(path):
    return torch.from_numpy(cv2.imread(path, cv2.IMREAD_COLOR_RGB)).permute(2, 0, 1)
"""
