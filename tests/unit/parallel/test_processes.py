"""How long torch's agent waits for processes to end."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

from stepladder.parallel.failures import LAUNCHED
from stepladder.parallel.launch import processes


def test_after_a_failure_the_others_are_given_less_time_than_after_a_signal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: list[tuple[Any, int]] = []

    def start(agent: Any, worker_group: Any) -> dict[int, int]:
        agent._pcontext = SimpleNamespace(close=lambda *words: given.append(words))
        return {0: 1}

    monkeypatch.setattr(LocalElasticAgent, "_start_workers", start)
    agent = processes._agent(
        2, ["train"], SimpleNamespace(), DefaultLogsSpecs(), folder=tmp_path, restarts=1
    )
    assert agent._start_workers(None) == {0: 1}
    agent._pcontext.close()  # as torch does after a failure
    agent._pcontext.close(signal.SIGTERM, processes._END_S)
    assert given == [(None, processes._LEFT_S), (signal.SIGTERM, processes._END_S)]
    assert processes._LEFT_S < processes._END_S
    agent._pcontext = None


def test_variables_of_the_processes_are_not_left_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Later runs of the same program would otherwise print no failure themselves."""
    inside: list[tuple[str | None, ...]] = []

    def run(_agent: Any) -> Any:
        inside.append(tuple(os.environ.get(name) for name in (LAUNCHED, "SET", "UNSET")))
        return SimpleNamespace(is_failed=lambda: False)

    monkeypatch.setattr(LocalElasticAgent, "run", run)
    monkeypatch.delenv(LAUNCHED, raising=False)
    monkeypatch.delenv("UNSET", raising=False)
    monkeypatch.setenv("SET", "before")
    processes.run_processes(
        2, ["train"], folder=tmp_path, restarts=1, env={"SET": "within", "UNSET": "within"}
    )
    assert inside == [("1", "within", "within")]
    assert os.environ["SET"] == "before"
    assert LAUNCHED not in os.environ
    assert "UNSET" not in os.environ
