"""The generated demo dataset: drawn scenes of everyday things with the exact truth about what can be seen in them.

sketch.py        polygons, and the shapes made of them
objects.py       OBJECTS: the categories and how each is sketched
places.py        PLACES: backgrounds, what is likely to be seen there, and what is seen together
composition.py   draw_scene: one picture and its truth
folder.py        make_scenes: a whole dataset on disk
"""

from fewtags.data.scenes.composition import draw_scene
from fewtags.data.scenes.folder import make_scenes

__all__ = ["draw_scene", "make_scenes"]
