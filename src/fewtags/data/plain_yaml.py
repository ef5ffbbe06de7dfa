"""YAML as people write it by hand."""

from __future__ import annotations

from typing import Any

import yaml


class NoAnchors(yaml.BaseLoader):
    """YAML whose values are all strings (2019, yes and no are tags), without `*a`, which can expand to gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            event = self.peek_event()
            raise yaml.YAMLError(f"*{event.anchor} in line {event.start_mark.line + 1} is not supported here")
        return super().compose_node(parent, index)
