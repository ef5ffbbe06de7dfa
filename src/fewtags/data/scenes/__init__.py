"""The generated demo dataset: drawn scenes of everyday objects with exact ground truth.

sketch.py        polygons, and the shapes made of them
objects.py       OBJECTS: the categories and how each is sketched
places.py        PLACES: backgrounds, which objects are likely there, and which occur together
composition.py   draw_scene: one picture and its ground truth
folder.py        make_scenes: a whole dataset on disk
backbone.safetensors   timm's test_resnet, trained to name single drawn objects by tools/pretrain_demo_backbone.py
"""

from pathlib import Path

from fewtags.data.scenes.composition import draw_scene
from fewtags.data.scenes.folder import make_scenes

__all__ = ["BACKBONE", "draw_scene", "make_scenes"]

BACKBONE = Path(__file__).with_name("backbone.safetensors")
