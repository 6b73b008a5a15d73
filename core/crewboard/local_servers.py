"""Find servers of models that run on this machine at their usual ports, with the models that they list."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from crewboard import endpoint, models
from crewboard.records.base import counted

PORTS = {11434: "Ollama", 8080: "llama.cpp", 1234: "LM Studio", 8000: "vLLM"}
"""The programs that serve models, by the port on which each listens by default."""

TIMEOUT = 0.5
"""Seconds within which a server on this machine has to answer."""

_OWNERS = {"library": "Ollama", "llamacpp": "llama.cpp", "vllm": "vLLM"}
"""The names of programs by the `owned_by` in their lists of models; a program may use another one's port."""

_OK = 200


@dataclass(frozen=True)
class LocalServer:
    """A server on this machine that lists models. Whether these can call tools, only a call shows."""

    name: str
    url: str
    models: tuple[str, ...]

    @property
    def best(self) -> str:
        """Return the model to propose: one for code, else the first that does not make embeddings."""
        writing = [model for model in self.models if "embed" not in model.lower()] or [*self.models]
        return next((model for model in writing if "code" in model.lower()), writing[0])

    def __str__(self) -> str:
        more = f" and {counted(len(self.models) - 1, 'more model')}" if len(self.models) > 1 else ""
        return f"{self.name} on this machine has {self.best}{more}"


def find() -> list[LocalServer]:
    """Return the servers at the usual ports of this machine that list models. All ports are asked at once."""
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
