"""How a deployment behaves, seen on a running one: each check is a function whose docstring is its claim.

    COMPOSE="docker compose -p NAME -f docker-compose.yml" python deploy/check/checks.py [--all] [--keep] [CHECK ...]

from the project's folder, with the image built; ``run.sh`` beside this file does all of that. The compose project NAME
is made, restarted, killed and taken down. With ``--all``, three replicas are checked as two are; with ``--keep`` the
project is left running, and one check after another can be made alone, by its function's name.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from stack import (
    CheckError,
    Container,
    Reply,
    Stack,
    call,
    callers,
    docker,
    expect,
    query,
    run,
    sum_samples,
    wait_for,
)  # fmt: skip

SERVER = int(os.environ.get("EYELINE_PUBLISHED_PORT", "8080"))
PROMETHEUS = int(os.environ.get("PROMETHEUS_PUBLISHED_PORT", "9090"))
ALERTMANAGER = int(os.environ.get("ALERTMANAGER_PUBLISHED_PORT", "9093"))

USER = 10001
NUM_CALLERS = 16
LONG = "cat " * 250


class Deployment:
    """What the checks work on: the project with one replica, and with a balancer before several."""

    def __init__(self, command: list[str], scratch: Path) -> None:
        self.single = Stack(command)
        quick = scratch / "quick-alerts.yml"
        quick.write_text(quick_alerts(scratch / "prometheus"))
        self.scaled = self.single.with_files("deploy/compose.scale.yml", str(quick))
        self.scratch = scratch
        self.figures: dict[str, str] = {}

    @property
    def image(self) -> str:
        """The server's image."""
        return self.single.containers("app")[0].inspect(".Config.Image")


def quick_alerts(folder: Path) -> str:
    """Copy Prometheus' configuration with every wait cut to a second; return a compose file that mounts the copy."""
    shutil.copytree("deploy/prometheus", folder)
    folder.chmod(0o755)
    for file in [folder / "prometheus.yml", *(folder / "rules").glob("*.yml")]:
        text = re.sub(r"^(\s*for:) .*", r"\1 1s", file.read_text(), flags=re.MULTILINE)
        file.write_text(re.sub(r"((?:scrape|evaluation|refresh)_interval:) \w+", r"\1 1s", text))
    return json.dumps({"services": {"prometheus": {"volumes": [f"{folder}:/etc/prometheus:ro"]}}})


# --- one server ---


def starts(deployment: Deployment) -> None:
    """``docker compose up`` brings the server and Prometheus, both healthy."""
    deployment.single.up()


def encodes(deployment: Deployment) -> None:
    """The published port answers with unit vectors of 384 dimensions, and curl's health check is one line."""
    reply = call(SERVER, "/encode", {"texts": ["The cat sat.", ""]})
    expect(reply.status == 200, reply)
    vectors = reply.json()["embeddings"]
    expect([len(vector) for vector in vectors] == [384, 384], reply)
    expect(all(abs(sum(x * x for x in vector) - 1) < 1e-3 for vector in vectors), reply)
    expect(call(SERVER, "/health").body == b'{"status":"ready"}\n', call(SERVER, "/health"))


def is_confined(deployment: Deployment) -> None:
    """The server has no privileges: its own user, no capabilities, none to be gained, nothing but /tmp to write to."""
    app = deployment.single.one("app")
    status = dict(line.split(":\t", 1) for line in app.run("cat", "/proc/1/status").splitlines() if ":\t" in line)
    expect(status["Uid"].split() == [str(USER)] * 4, status["Uid"])
    expect(int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0, (status["CapEff"], status["CapBnd"]))
    expect(status["NoNewPrivs"] == "1", status["NoNewPrivs"])
    written = app.python(
        "import errno, os\n"
        "for folder in ('/', '/app', '/app/weights', '/opt/venv', '/var/tmp', '/models', '/tmp'):\n"
        "    try:\n"
        "        open(folder + '/probe', 'x').close()\n"
        "        print(folder)\n"
        "    except OSError as error:\n"
        "        assert error.errno in (errno.EROFS, errno.EACCES), error\n"
    )
    expect(written == "/tmp", f"could write to {written.split()}")


def has_no_build_tools(deployment: Deployment) -> None:
    """There is nothing in the image to install or compile with, nor what the server must not depend on."""
    app = deployment.single.one("app")
    found = app.python(
        "import importlib.util as i, shutil\n"
        "modules = ['pip', 'setuptools', 'wheel', 'ensurepip', 'transformers', 'sentence_transformers']\n"
        "print(*[name for name in modules if i.find_spec(name)])\n"
        "print(*[name for name in ('pip', 'cc', 'gcc', 'make', 'git', 'curl', 'wget') if shutil.which(name)])\n"
    )
    expect(not found.split(), found)


def is_compiled(deployment: Deployment) -> None:
    """A start reads bytecode: hardly a module is compiled, since a read-only root keeps nothing for the next start."""
    app = deployment.single.one("app")
    total, _, missing = app.python(
        "import json, os, sys\n"
        "import app.main, app.server, uvicorn.lifespan.on, uvicorn.loops.uvloop\n"
        "from model.embedder import Embedder\n"
        "Embedder.load('/app/weights/eyeline-base').encode(['a'])\n"
        "files = [getattr(module, '__cached__', None) for module in list(sys.modules.values())]\n"
        "files = [file for file in files if isinstance(file, str)]\n"
        "missing = [file for file in files if not os.path.exists(file)]\n"
        "print(len(files)); print(*missing)\n"
    ).partition("\n")
    deployment.figures["modules compiled at a start"] = f"{len(missing.split())} of {total}"
    expect(len(missing.split()) < 0.02 * int(total), missing)


def runs_commands(deployment: Deployment) -> None:
    """``docker run IMAGE encode`` encodes a file of a mounted folder for its owner, without a network."""
    folder = deployment.scratch / "data"
    folder.mkdir()
    if os.getuid() == 0:
        os.chown(folder, 12345, 12345)  # somebody who is not in the image's list of users
    (folder / "texts.txt").write_text("The cat sat.\nA dog barked.\n")
    owner = folder.stat()
    common = ["run", "--rm", "--read-only", "--network", "none", "--cap-drop", "ALL"]
    common += ["--user", f"{owner.st_uid}:{owner.st_gid}", "--volume", f"{folder}:/data", "--workdir", "/data"]
    docker(*common, deployment.image, "encode", "texts.txt", "vectors.npy")
    vectors = (folder / "vectors.npy").read_bytes()
    expect(b"'shape': (2, 384)" in vectors[:128], vectors[:128])
    expect((folder / "vectors.npy").stat().st_uid == owner.st_uid, (folder / "vectors.npy").stat())


def says_what_is_missing(deployment: Deployment) -> None:
    """A model that is not there ends the container at once, with one sentence that names the folder and a way out."""
    done = run(
        "docker", "run", "--rm", "--network", "none", "--env", "EYELINE_MODEL=nowhere", deployment.image, check=False
    )
    expect(done.returncode == 1, done)
    expect(done.stderr.count("\n") == 1 and "/app/weights/nowhere" in done.stderr, done.stderr)
    expect("weights fetch" in done.stderr, done.stderr)


def is_scraped(deployment: Deployment) -> None:
    """Prometheus, as configured, sees the server."""
    wait_for("the first scrape", lambda: len(query(PROMETHEUS, 'up{job="eyeline"} == 1')) == 1)


def drains(deployment: Deployment) -> None:
    """``docker stop`` with requests in flight: all are answered in full, and the exit code is 0.

    Before the stop a slow machine may have refused some, its queue being full.
    """
    app = deployment.single.one("app")
    replies: list[Reply] = []

    def encode() -> None:
        replies.append(call(SERVER, "/encode", {"texts": [LONG] * 4, "dimensions": 8}))

    def num_answered(page: str) -> float:
        return sum_samples(page, "eyeline_requests_total", {"route": "/encode"})

    def have_arrived() -> bool:
        page = call(SERVER, "/metrics").body.decode()
        in_flight = sum_samples(page, "eyeline_inflight_requests", {}) - 1  # the one that asks
        return in_flight > 0 and num_answered(page) - before + in_flight >= NUM_CALLERS

    before = num_answered(call(SERVER, "/metrics").body.decode())
    threads = [threading.Thread(target=encode) for _ in range(NUM_CALLERS)]
    for thread in threads:
        thread.start()
    wait_for("the requests' arrival", have_arrived)
    num_early = len(replies)
    docker("stop", app.identity)
    for thread in threads:
        thread.join()
    in_flight = replies[num_early:]
    expect(bool(in_flight), "nothing was in flight any more")
    expect({reply.status for reply in replies[:num_early]} <= {200, 429}, [reply.status for reply in replies])
    expect({reply.status for reply in in_flight} == {200}, [reply.status for reply in replies])
    expect(all(len(reply.json()["embeddings"]) == 4 for reply in in_flight), "an answer was short")
    expect(app.inspect(".State.ExitCode") == "0", app.inspect(".State.ExitCode"))
    deployment.figures["answered after the stop"] = f"{len(in_flight)} of {NUM_CALLERS} requests"


def starts_cold(deployment: Deployment) -> None:
    """A stopped container is ready again within seconds; how many, and what it takes in memory, is printed."""
    app = deployment.single.one("app")
    begin = time.monotonic()
    docker("start", app.identity)
    wait_for("readiness", lambda: call(SERVER, "/health/ready").status == 200)
    deployment.figures["cold start to ready"] = f"{time.monotonic() - begin:.1f} s"
    deployment.figures["resident memory when ready"] = f"{app.sample('process_resident_memory_bytes') / 1e6:.0f} MB"
    for _ in range(20):
        call(SERVER, "/encode", {"texts": [LONG] * 4})
    deployment.figures["resident memory after 80 long texts"] = (
        f"{app.sample('process_resident_memory_bytes') / 1e6:.0f} MB"
    )


def survives_its_memory_limit(deployment: Deployment) -> None:
    """The kernel kills the server at the container's limit, Docker starts it again, and it serves."""
    app = deployment.single.one("app")
    limit = int(app.inspect(".HostConfig.Memory"))
    begin = str(int(time.time()) - 1)
    # Another process fills the container; the server is marked as the one to be killed for it.
    filled = run(
        "docker", "exec", app.identity, "python", "-c",
        f"open('/proc/1/oom_score_adj', 'w').write('1000'); blocks = [b'x' * 2**20 for _ in range({limit} // 2**20)]",
        check=False,
    )  # fmt: skip
    expect(filled.returncode != 0, "the container holds more than its limit")
    seconds = wait_for("a restart", lambda: app.inspect(".RestartCount") != "0")
    seconds += wait_for("recovery", lambda: call(SERVER, "/health/ready").status == 200)
    events = docker(
        "events", "--since", begin, "--until", str(int(time.time()) + 1), "--filter", f"container={app.identity}",
        "--format", "{{.Action}}",
    )  # fmt: skip
    expect("oom" in events.split(), events)
    deployment.figures["recovery after the kill at the memory limit"] = f"{seconds:.1f} s"
    encodes(deployment)


# --- replicas behind the balancer ---


def scales(deployment: Deployment) -> None:
    """The override puts two replicas behind the balancer, which takes over the published port."""
    deployment.scaled.up("app", "prometheus", "balancer", "alertmanager")
    replicas = deployment.scaled.containers("app")
    expect(len(replicas) == 2, deployment.scaled("ps"))
    expect(not any(json.loads(one.inspect("json .HostConfig.PortBindings")) for one in replicas), "a port is published")
    encodes(deployment)


def shares_load(deployment: Deployment) -> None:
    """No replica gets less than half of its share of the requests."""
    replicas = deployment.scaled.containers("app")
    before = [one.sample("eyeline_requests_total", route="/encode", status="200") for one in replicas]
    with callers(SERVER, NUM_CALLERS) as replies:
        wait_for("200 answers", lambda: len(replies) >= 200)
    expect({reply.status for reply in replies} == {200}, {reply.status for reply in replies})
    after = [one.sample("eyeline_requests_total", route="/encode", status="200") for one in replicas]
    shares = [round(late - early) for early, late in zip(before, after, strict=True)]
    deployment.figures[f"requests to each of {len(replicas)} replicas"] = " + ".join(map(str, shares))
    expect(sum(shares) == len(replies), (shares, len(replies)))
    expect(min(shares) > 0.5 * sum(shares) / len(shares), shares)


def scrapes_every_replica(deployment: Deployment) -> None:
    """Prometheus finds every replica by the service's name, and the balancer."""
    number = len(deployment.scaled.containers("app"))
    # A Prometheus that was started anew remembers, for five minutes, replicas that were there before.
    recent = 'up{job="eyeline"} == 1 and time() - timestamp(up{job="eyeline"}) < 15'
    wait_for("a scrape of each replica", lambda: len(query(PROMETHEUS, recent)) == number)
    wait_for("a scrape of the balancer", lambda: len(query(PROMETHEUS, 'up{job="balancer"} == 1')) == 1)


def loses_a_replica(deployment: Deployment) -> None:
    """A replica is killed under load: of the requests, only those that it was working on fail; it comes back."""
    victim = deployment.scaled.containers("app")[0]
    with callers(SERVER, NUM_CALLERS) as replies:
        wait_for("load", lambda: len(replies) >= 100)
        docker("kill", victim.identity)
        killed = time.monotonic()
        wait_for("load after the kill", lambda: sum(reply.begin > killed for reply in list(replies)) >= 100)
        time.sleep(3)  # so that health checks and name service have noticed, each with its own way to fail
    failed = [reply for reply in replies if reply.status != 200]
    late = [reply for reply in failed if reply.begin > killed]
    expect(not late, f"{len(late)} requests failed that began after the kill, such as {late[:1]}")
    expect(len(failed) <= NUM_CALLERS, f"{len(failed)} requests failed")
    deployment.figures["requests lost with a killed replica"] = f"{len(failed)} of {len(replies)}"
    docker("start", victim.identity)
    with callers(SERVER, NUM_CALLERS):
        wait_for("requests to the replica that is back", lambda: is_busy(victim))


def is_busy(replica: Container) -> bool:
    """Whether a replica has answered requests to encode; False while it does not answer at all."""
    try:
        return replica.sample("eyeline_requests_total", route="/encode", status="200") > 0
    except CheckError:
        return False


def alerts(deployment: Deployment) -> None:
    """A replica that stops answering fires EyelineInstanceDown in Alertmanager, until it answers again."""
    victim = deployment.scaled.containers("app")[0]

    def firing() -> int:
        reply = call(ALERTMANAGER, "/api/v2/alerts?active=true&filter=alertname%3DEyelineInstanceDown")
        return len(reply.json()) if reply.status == 200 else -1

    wait_for("silence before", lambda: firing() == 0)
    docker("pause", victim.identity)
    try:
        fired = wait_for("the alert", lambda: firing() == 1)
    finally:
        docker("unpause", victim.identity)
    resolved = wait_for("its end", lambda: firing() == 0)
    deployment.figures["alert seen and resolved after"] = f"{fired:.1f} s and {resolved:.1f} s"


def restarts_without_an_error(deployment: Deployment) -> None:
    """Every replica is replaced under wrk, and wrk counts no error."""
    before = {one.identity for one in deployment.scaled.containers("app")}
    wrk = subprocess.Popen(
        ["wrk", "--threads", "1", "--connections", str(NUM_CALLERS), "--duration", "600s", "--timeout", "60s",
         "--script", "deploy/check/encode.lua", f"http://127.0.0.1:{SERVER}/encode"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    begin = time.monotonic()
    try:
        run("bash", "deploy/rolling_restart.sh", *deployment.scaled.options)
    finally:
        seconds = time.monotonic() - begin
        wrk.send_signal(signal.SIGINT)  # it prints its table
        table, _ = wrk.communicate(timeout=60)
    after = {one.identity for one in deployment.scaled.containers("app")}
    expect(len(after) == len(before) and not after & before, (before, after))
    sent = re.search(r"(\d+) requests in", table)
    expect(sent is not None and int(sent[1]) > 100, table)
    expect("Socket errors" not in table and "Non-2xx" not in table, table)
    deployment.figures["rolling restart under wrk"] = f"{seconds:.0f} s, {sent[1] if sent else 0} requests, 0 errors"


def scales_to_three(deployment: Deployment) -> None:
    """A third replica joins while the others run."""
    deployment.scaled.up("--no-recreate", "--scale", "app=3", "app")
    expect(len(deployment.scaled.containers("app")) == 3, deployment.scaled("ps"))
    third = deployment.scaled.containers("app")[-1]
    with callers(SERVER, NUM_CALLERS):
        wait_for("requests to the third replica", lambda: is_busy(third))


ONE_SERVER = [
    starts, encodes, is_confined, has_no_build_tools, is_compiled, runs_commands, says_what_is_missing, is_scraped,
    drains, starts_cold, survives_its_memory_limit,
]  # fmt: skip
TWO_REPLICAS = [scales, shares_load, scrapes_every_replica, loses_a_replica, alerts, restarts_without_an_error]
THREE_REPLICAS = [scales_to_three, shares_load, scrapes_every_replica, loses_a_replica, restarts_without_an_error]
CHECKS: list[Callable[[Deployment], None]] = [*ONE_SERVER, *TWO_REPLICAS, scales_to_three]


def describe_image(deployment: Deployment) -> None:
    """Print the image's size, layer by layer."""
    image = deployment.image
    deployment.figures["image"] = f"{int(docker('image', 'inspect', '--format', '{{.Size}}', image)) / 1e6:.0f} MB"
    for line in docker("history", "--no-trunc", "--format", "{{.Size}}\t{{.CreatedBy}}", image).splitlines():
        size, _, made_by = line.partition("\t")
        if size != "0B":
            print(f"       {size:>8}  {made_by[:100]}")


def main() -> int:
    """Make the checks in their order, print each with its seconds, and return how many failed."""
    parser = argparse.ArgumentParser(description="Check how a deployment behaves.")
    parser.add_argument("--all", action="store_true", help="three replicas as well")
    parser.add_argument("--keep", action="store_true", help="leave the project running")
    parser.add_argument("checks", nargs="*", metavar="CHECK", choices=[*(check.__name__ for check in CHECKS), []])
    arguments = parser.parse_args()
    checks = [*ONE_SERVER, *TWO_REPLICAS, *(THREE_REPLICAS if arguments.all else [])]
    if arguments.checks:
        checks = [check for check in CHECKS if check.__name__ in arguments.checks]
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        os.chmod(scratch, 0o755)  # containers with users of their own read here
        deployment = Deployment(shlex.split(os.environ.get("COMPOSE", "docker compose")), Path(scratch))
        try:
            for check in checks:
                begin = time.monotonic()
                claim = " ".join((check.__doc__ or "").split())
                try:
                    check(deployment)
                    print(f"ok     {time.monotonic() - begin:5.1f} s  {claim}", flush=True)
                except Exception as error:  # whatever a check stumbles over, the others have something to say as well
                    failed += 1
                    print(f"FAILED {time.monotonic() - begin:5.1f} s  {claim}\n{error!r}", flush=True)
            describe_image(deployment)
        finally:
            if not arguments.keep:
                deployment.scaled("--profile", "observability", "down", "--volumes", "--timeout", "10")
    for name, figure in deployment.figures.items():
        print(f"{name}: {figure}")
    print(f"{len(checks) - failed} of {len(checks)} checks passed")
    return failed


if __name__ == "__main__":
    sys.exit(min(main(), 1))
