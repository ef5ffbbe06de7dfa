"""What /metrics says, by prometheus_client."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # upper bounds of the latency histogram


class Measures:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()  # its own: two servers in one process count apart
        ProcessCollector(registry=registry)  # memory, processor time and open files of the process
        self.requests = Counter("fewtags_requests", "Requests answered, by HTTP status.", ["status"], registry=registry)
        self.images = Counter("fewtags_images", "Images answered.", registry=registry)
        self.waiting = Gauge("fewtags_images_waiting", "Images accepted and not answered yet.", registry=registry)
        self.batches = Counter(
            "fewtags_batches", "Batches the model ran, by their images.", ["size"], registry=registry
        )
        self.seconds = Histogram(
            "fewtags_request_seconds", "From a request to its answer.", buckets=SECONDS, registry=registry
        )

    def add_request(self, status: int, seconds: float) -> None:
        self.requests.labels(status).inc()
        self.seconds.observe(seconds)

    def add_batch(self, size: int) -> None:
        self.batches.labels(size).inc()

    def text(self, accept: str) -> tuple[bytes, str]:
        """In the format the client accepts, OpenMetrics or Prometheus' own, and its media type."""
        encode, media_type = choose_encoder(accept)
        return encode(self.registry), media_type
