"""`fewtags serve`: tags over HTTP, from a run or an exported file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fewtags.commands.review import listen
from fewtags.engine.onnx_tagger import ExportedTagger, is_exported
from fewtags.errors import MissingExtra, UserError

if TYPE_CHECKING:
    from fewtags.serve.app import Limits, ServedModel

LOOPBACK = ("127.0.0.1", "::1", "localhost")
STOP_SECONDS = 30  # for requests in flight when the server is stopped


class SavedTagger:
    """A run's model, on the CPU or a GPU."""

    def __init__(self, run: Path, device: str):
        import torch

        from fewtags.engine.run import choose_device
        from fewtags.models.saved import load_model

        self.torch, self.device = torch, choose_device(device)
        saved = load_model(run)
        self.model = saved.classifier.to(self.device).eval()
        self.categories, self.thresholds, self.size = saved.categories, saved.thresholds, saved.input.size
        self.tree = saved.tree
        self.num_threads = torch.get_num_threads()
        self.on_one_core = self._on_one_core if self.device.type == "cpu" else None

    def probabilities(self, pixels: np.ndarray) -> np.ndarray:
        return self._run(pixels, self.num_threads)

    def _on_one_core(self, pixels: np.ndarray) -> np.ndarray:
        return self._run(pixels, 1)

    def _run(self, pixels: np.ndarray, num_threads: int) -> np.ndarray:
        self.torch.set_num_threads(num_threads)  # of the calling thread
        with self.torch.inference_mode():
            images = self.torch.from_numpy(np.ascontiguousarray(pixels)).to(self.device)
            return self.model(images).logits.sigmoid().cpu().numpy()


def load_tagger(model: Path, device: str = "auto") -> ServedModel:
    return ExportedTagger(model) if is_exported(model) else SavedTagger(model, device)


def serve(model: Path, *, host: str, port: int, device: str, limits: Limits, api_key: str | None) -> None:
    try:
        import uvicorn

        from fewtags.serve.app import create_app
    except ImportError:
        raise MissingExtra("fewtags serve", "serve") from None
    if host not in LOOPBACK and not api_key:
        print(
            f"fewtags: Warning: anyone who can reach {host}:{port} can use this server; set FEWTAGS_API_KEY, or put it "
            "behind an authenticating proxy.",
            file=sys.stderr,
        )
    with listen(host, port) as bound:  # before loading the model: a port in use is reported immediately
        app = create_app(load_tagger(model, device), limits, api_key)
        shown = f"[{host}]" if ":" in host else host
        print(f"http://{shown}:{bound.getsockname()[1]}/v1/tags", flush=True)
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=STOP_SECONDS)
        uvicorn.Server(config).run(sockets=[bound])


def serve_label_studio(
    run: Path, *, host: str, port: int, device: str, images: Path | None, complete: bool, api_key: str | None
) -> None:
    """Speak Label Studio's ML backend protocol. Images come from a folder, or from the server in LABEL_STUDIO_URL."""
    try:
        import uvicorn

        from fewtags.serve.label_studio import Backend, Images, create_backend
    except ImportError:
        raise MissingExtra("fewtags serve --label-studio", "label-studio") from None
    from fewtags.models.places import model_places
    from fewtags.tagger import Tagger

    if not any((place / "config.json").is_file() for place in model_places(run)):
        raise UserError(f"--label-studio learns, so it needs a run or a saved tagger; {run} is neither.")
    address, token = os.environ.get("LABEL_STUDIO_URL"), os.environ.get("LABEL_STUDIO_API_KEY")
    if images is None and address is None:
        raise UserError("Say where the images of tasks are: --images FOLDER, or LABEL_STUDIO_URL in the environment.")
    with listen(host, port) as bound:
        tagger = Tagger.load(run).set_params(device=device)
        if tagger.method != "instant":
            print(
                f"fewtags: Note: '{tagger.method}' predicts but does not learn; only 'instant' does.", file=sys.stderr
            )
        backend = Backend(run, tagger, Images(images, address, token), complete=complete, api_key=api_key)
        print(f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}", flush=True)
        config = uvicorn.Config(create_backend(backend), log_level="warning", timeout_graceful_shutdown=STOP_SECONDS)
        uvicorn.Server(config).run(sockets=[bound])


def key_from_environment() -> str | None:
    """Not a command-line option, which every process on the machine could read."""
    return os.environ.get("FEWTAGS_API_KEY") or None
