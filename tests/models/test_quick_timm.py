"""timm without torch's compiler, which is loaded where it is asked for."""

from __future__ import annotations

import re
import subprocess
import sys

import torch

from conftest import PROJECT, TINY

COMMANDS = (
    "import sys; from fewtags.cli import main\n"
    "words = sys.argv[1:]\n"
    "while words:\n"
    "    end = words.index('--')\n"
    "    sys.argv, words = ['fewtags', *words[:end]], words[end + 1 :]\n"
    "    try: main()\n"
    "    except SystemExit as ended: assert not ended.code, ended.code\n"
    "print([name for name in ('torch._dynamo', 'sympy', 'onnxruntime') if name in sys.modules], file=sys.stderr)"
)


def test_a_run_is_trained_and_tags_a_photo_without_the_compiler(patches, tags_file, tmp_path):
    """In a process of its own: importing it takes longer than importing torch."""
    data = [patches.root, "--tags", tags_file, "--quiet", *TINY]
    train, fit = (["train", *data, "--out", tmp_path / method, f"method={method}"] for method in ("an", "linear"))
    words = [*train, "--", *fit, "--", "predict", tmp_path / "an", patches.path(0), "--quiet", "--"]
    command = [sys.executable, "-c", COMMANDS, *map(str, words)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stderr.strip() == "[]"
    assert str(patches.path(0)) in done.stdout


def test_what_was_postponed_still_works():
    from torchvision.ops import roi_align

    import fewtags.models.quick_timm  # noqa: F401

    boxes = torch.tensor([[0.0, 0.0, 0.0, 4.0, 4.0]])
    assert roi_align(torch.ones(1, 1, 8, 8), boxes, output_size=2).tolist() == [[[[1, 1], [1, 1]]]]
    assert torch.compiler.disable(lambda: 3)() == 3
    assert sys.modules["torch._dynamo.utils"].is_compile_supported("cpu") in (True, False)


def test_no_other_module_imports_timm_first():
    """It would bring the compiler. Inside a function of a model timm is there already."""
    direct = re.compile(r"^(import|from) (timm|torchvision)\b", re.MULTILINE)
    assert not [file for file in (PROJECT / "src").rglob("*.py") if direct.search(file.read_text(encoding="utf-8"))]
