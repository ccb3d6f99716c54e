"""The example service as a real process, asked over HTTP: by its clients, and by SIGTERM."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from tiny import RECIPE, Tiny

from aotbuild.bench.pipeline import PROMPT, random_pipeline
from aotbuild.bench.service import ROOT, compare
from aotbuild.bench.service_load import BUSY, OK, Answer, Ask, ask
from aotbuild.bench.service_process import Service, running
from aotbuild.bench.service_summary import percentiles
from aotbuild.cache.artifact import Entry
from aotbuild.cache.collection import describe_entry
from aotbuild.cache.lockfile import Lock
from aotbuild.cache.store import Store
from aotbuild.cli import main

REQUESTS = 200
PLACES = 8


@contextmanager
def serving(work: Path, store: Path, **changes: str) -> Iterator[Service]:
    """The example, on one thread, from a lockfile of all that `store` has, without a compiler."""
    work.mkdir(exist_ok=True)
    entries = [e for e in Store(store).entries() if isinstance(e, Entry)]
    lock = Lock(repository="org/tiny", revision="0" * 40, items=tuple(map(describe_entry, entries)))
    lock.write(work / "aotbuild.lock")
    (work / "bin").mkdir()
    environment = {
        "PATH": str(work / "bin"),
        "CC": "",
        "CXX": "",
        "AOTBUILD_STORE": str(store),
        "HF_HUB_OFFLINE": "1",
        "SERVE_ARTIFACTS": str(work / "aotbuild.lock"),
        "SERVE_QUEUE": str(PLACES),
        "OMP_NUM_THREADS": "1",
        **changes,
    }
    with running(ROOT, work / "service.log", environment) as service:
        yield service


@pytest.fixture(scope="module")
def service(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One that is ready."""
    with serving(tmp_path_factory.mktemp("service") / "work", tiny.store) as found:
        found.wait_until_ready()
        yield found


def request(service: Service, seed: int = 0, *, steps: int = 1, size: str = "128x128") -> Answer:
    wanted = Ask(prompt=PROMPT, seed=seed, steps=steps, size=size)
    return ask(service.url, wanted, begun=time.perf_counter(), timeout_s=120)


def text(service: Service, path: str) -> str:
    with urllib.request.urlopen(f"{service.url}{path}", timeout=30) as answer:
        return str(answer.read().decode())


def test_every_image_is_eagers_and_none_is_lost_when_twice_what_it_serves_is_asked(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--requests", str(REQUESTS), "--url", service.url, "--out", str(tmp_path), "--json"]
    assert main(["bench", "service", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["answered"] + found["refused"] == REQUESTS
    assert found["answered"] > PLACES
    assert found["refused"] > REQUESTS / 10
    assert found["lost"] == 0
    assert found["different"] == 0
    rows = list(csv.DictReader((tmp_path / "service.csv").read_text().splitlines()))
    assert sorted(int(r["seed"]) for r in rows) == list(range(REQUESTS))
    refused = [r for r in rows if int(r["status"]) == BUSY]
    assert all(int(r["retry_after"]) >= 1 for r in refused)
    quick = percentiles([float(r["seconds"]) for r in refused])
    assert quick is not None
    assert quick["p90"] <= 0.1
    counted = text(service, "/metrics").splitlines()
    assert f'serve_requests_total{{outcome="refused"}} {len(refused)}' in counted
    assert "aotbuild_fallbacks_total{" not in "".join(counted)


def test_bench_says_so_when_nobody_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--url", "http://127.0.0.1:9", "--out", str(tmp_path)]
    assert main(["bench", "service", *options]) == 2
    assert "Nobody answers at http://127.0.0.1:9/readyz" in capsys.readouterr().err


def test_request_is_refused_with_what_is_served_when_there_is_no_artifact_for_its_size(
    service: Service,
) -> None:
    answer = request(service, size="64x64")
    assert answer.status == 422
    assert b"no artifact for 64x64" in answer.body
    assert b"128x128" in answer.body
    assert request(service, steps=10**6).status == 422
    assert request(service, size="128").status == 422
    assert request(service).status == OK


def test_same_seed_draws_the_same_image_and_another_seed_another(service: Service) -> None:
    first, again, other = (request(service, seed) for seed in (1, 1, 2))
    assert first.body == again.body != other.body
    wanted = [Ask(prompt=PROMPT, seed=1, steps=1, size="128x128")]
    assert compare([first], random_pipeline(RECIPE), wanted)[1] <= 1
    assert compare([first], random_pipeline(RECIPE, seed=7), wanted)[1] > 1


def test_what_was_accepted_is_finished_and_new_ones_are_refused_when_terminated(
    tiny: Tiny, tmp_path: Path
) -> None:
    with (
        serving(tmp_path / "work", tiny.store) as service,
        ThreadPoolExecutor(PLACES) as clients,
    ):
        service.wait_until_ready()
        accepted = [clients.submit(request, service, seed, steps=20) for seed in range(PLACES)]
        while f"serve_waiting {PLACES - 1}" not in text(service, "/metrics").splitlines():
            assert not any(a.done() for a in accepted)
        assert service.process is not None
        service.process.send_signal(signal.SIGTERM)
        while (status := service.readiness())[0] == OK:
            pass
        assert status == (503, {"status": "draining", "reason": "shutting down"})
        refused = request(service)
        assert refused.status == 503
        assert refused.retry_after
        statuses = []
        while not all(a.done() for a in accepted):
            statuses.append(request(service).status)
        # Its port is open to the end; the last request may have come after that.
        assert set(statuses[:-1]) == {503}
        assert [a.result().status for a in accepted] == [OK] * PLACES
        assert service.process.wait(30) in (0, -signal.SIGTERM)


def test_waiting_request_gets_504_after_its_time_and_is_not_drawn(
    tiny: Tiny, tmp_path: Path
) -> None:
    with (
        serving(tmp_path / "work", tiny.store, SERVE_TIMEOUT_S="0.5") as service,
        ThreadPoolExecutor(3) as clients,
    ):
        service.wait_until_ready()
        begun = time.monotonic()
        slow = [clients.submit(request, service, seed, steps=100) for seed in range(3)]
        assert [s.result().status for s in slow] == [504] * 3
        while 'serve_requests_total{outcome="timeout"} 3' not in text(service, "/metrics"):
            assert time.monotonic() - begun < 60
        assert request(service).status == OK


def test_altered_artifact_keeps_it_from_ready_and_says_why(tiny: Tiny, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(tiny.store, store)
    # One that no call of the service needs: the unguided batch.
    (package,) = store.glob("artifacts/unet/*/1x*/package.pt2")
    data = bytearray(package.read_bytes())
    data[len(data) // 2] ^= 1
    package.chmod(0o644)
    package.write_bytes(data)
    with serving(tmp_path / "work", store) as service:
        while (said := service.readiness())[1]["status"] in ("silent", "starting"):
            time.sleep(0.05)
        status, document = said
        assert status == 503
        assert document["status"] == "failed"
        assert "IntegrityError" in document["reason"]
        assert "package.pt2" in document["reason"]
        assert request(service).status == 503
        assert json.loads(text(service, "/healthz")) == {"status": "alive"}
