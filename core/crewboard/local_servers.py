"""Servers of models that run on this machine: found at their usual ports, with the models that they list."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from crewboard import endpoint, models
from crewboard.records.base import counted

PORTS = {11434: "Ollama", 8080: "llama.cpp", 1234: "LM Studio", 8000: "vLLM"}
"""The ports on which programs that serve models listen, unless they are told otherwise."""

TIMEOUT = 0.5
"""Seconds in which a server on this machine answers."""

_OWNERS = {"library": "Ollama", "llamacpp": "llama.cpp", "vllm": "vLLM"}
"""The words by which a program names itself in its list of models; another one may use its port."""

_OK = 200


@dataclass(frozen=True)
class LocalServer:
    """A server of this machine that lists models. Whether they can call tools, only a call shows."""

    name: str
    url: str
    models: tuple[str, ...]

    @property
    def best(self) -> str:
        """Return the model that is proposed: one for code, else the first that writes text."""
        writing = [model for model in self.models if "embed" not in model.lower()] or [*self.models]
        return next((model for model in writing if "code" in model.lower()), writing[0])

    def __str__(self) -> str:
        more = f" and {counted(len(self.models) - 1, 'more model')}" if len(self.models) > 1 else ""
        return f"{self.name} on this machine has {self.best}{more}"


def find() -> list[LocalServer]:
    """Look at the usual ports of this machine at once; return the servers that list models."""
    with ThreadPoolExecutor() as pool:
        return [found for found in pool.map(_look, PORTS) if found is not None]


def _look(port: int) -> LocalServer | None:
    url = f"http://127.0.0.1:{port}"
    try:
        # Nothing of the user's environment: a key must not reach a program that only listens there.
        status, said = endpoint.get({endpoint.BASE_URL: url}, "/v1/models", TIMEOUT)
    except (OSError, ValueError):
        return None
    names = models.listed(said) if status == _OK else []
    rows = said.get("data") if isinstance(said, Mapping) else None
    owner = rows[0].get("owned_by") if isinstance(rows, list) and rows and isinstance(rows[0], Mapping) else None
    return LocalServer(_OWNERS.get(str(owner), PORTS[port]), url, tuple(names)) if names else None
