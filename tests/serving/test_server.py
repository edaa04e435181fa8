"""A server from its start to a signal."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from nmt.errors import UserError
from nmt.serving.configs import ServingConfig
from nmt.serving.server import listening
from tests.runs.untrained import WORDS, untrained


def test_a_port_in_use_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = f"serve.port={port} cannot be listened at: Address already in use"
        with pytest.raises(UserError, match=words), listening(ServingConfig(port=port)):
            pass


@pytest.mark.parametrize(("token", "is_warned"), [(None, True), ("secret", False)])
def test_an_open_address_without_a_token_is_warned_of(
    token: str | None, is_warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with listening(ServingConfig(host="0.0.0.0", port=0, token=token)):
        pass
    assert ("serve.host=0.0.0.0 can be reached from other machines" in capsys.readouterr().err) == is_warned


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command(number: signal.Signals, tmp_path: Path) -> None:
    untrained(tmp_path / "run")
    command = [sys.executable, "-m", "nmt", "serve", f"run={tmp_path}/run", "serve.port=0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = process.stdout.readline().split()[3]
    body = json.dumps({"text": WORDS[0]}).encode()
    request = urllib.request.Request(f"{address}translate", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        assert response.status == 200
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err.splitlines()[-1]) == (
        128 + number,
        f"stopped by {number.name}; requests answered: 1",
    )
