"""OpenStack Swift with its S3 API: proxy, account, container and object server in one process, on loopback.

Runs under the Python that has Swift (`tests/support/s3_server.py` starts it), not under ours:

    python swift_server.py DIRECTORY ACCESS_KEY SECRET_KEY [PORT] [FREE]

Prints the port of the S3 API once all four listen (a free one, unless PORT says which), and ends when its stdin does:
with whoever started it. Started again on the same directory, however it ended, it has the same objects. FREE is the
share of the disk that it leaves free: with `100%` it is full.
"""

from __future__ import annotations

import sys
from pathlib import Path

import eventlet.wsgi  # type: ignore[import-not-found]
from swift.common import ring, utils, wsgi  # type: ignore[import-not-found]

BACKENDS = ("account", "container", "object")
FILTERS = (
    "catch_errors gatekeeper healthcheck listing_formats bulk s3api tempauth copy slo dlo versioned_writes symlink"
)


def main(directory: Path, access_key: str, secret_key: str, port: int = 0, free: str = "0") -> None:
    """Serve until stdin ends. All objects and settings lie in `directory`, whose filesystem has user xattrs."""
    utils.monkey_patch()
    (directory / "devices" / "disk").mkdir(parents=True, exist_ok=True)
    (directory / "swift.conf").write_text("[swift-hash]\nswift_hash_path_suffix = tests\n")
    # Bound before the rings name their ports, so that nobody else can take one in between.
    sockets = {name: eventlet.listen(("127.0.0.1", 0)) for name in BACKENDS}
    sockets["proxy"] = eventlet.listen(("127.0.0.1", port))
    ports = {name: socket.getsockname()[1] for name, socket in sockets.items()}
    for name in BACKENDS:
        write_ring(directory / f"{name}.ring.gz", ports[name])
        (directory / f"{name}.conf").write_text(settings(directory, ports[name], free) + backend_pipeline(name))
    text = settings(directory, ports["proxy"], free) + proxy_pipeline(access_key, secret_key)
    (directory / "proxy.conf").write_text(text)
    for name, socket in sockets.items():
        path = str(directory / f"{name}.conf")
        _, _, global_conf, _ = wsgi.check_config(path, f"{name}-server", verbose=True)
        app = wsgi.loadapp(path, global_conf)
        # What Swift's own start passes; that one is for one server in a process.
        options = {"protocol": wsgi.SwiftHttpProtocol, "capitalize_response_headers": False, "log_output": False}
        eventlet.spawn(eventlet.wsgi.server, socket, app, **options)
    print(ports["proxy"], flush=True)
    eventlet.hubs.trampoline(sys.stdin, read=True)


def write_ring(path: Path, port: int) -> None:
    """A ring of one device: everything has one replica, on the server at `port`."""
    builder = ring.RingBuilder(part_power=4, replicas=1, min_part_hours=0)
    device = {"region": 1, "zone": 1, "ip": "127.0.0.1", "port": port, "device": "disk", "weight": 1.0}
    builder.add_dev(device)
    builder.rebalance(seed=1)
    builder.get_ring().save(str(path))


def settings(directory: Path, port: int, free: str) -> str:
    """Settings of all four servers."""
    return f"""
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
swift_dir = {directory}
devices = {directory}/devices
mount_check = false
fallocate_reserve = {free}
workers = 0
log_level = WARNING
node_timeout = 30
conn_timeout = 5
container_update_timeout = 30
"""


def backend_pipeline(name: str) -> str:
    """The account, container or object server, bare."""
    return f"""
[pipeline:main]
pipeline = {name}-server
[app:{name}-server]
use = egg:swift#{name}
"""


def proxy_pipeline(access_key: str, secret_key: str) -> str:
    """The proxy with the S3 API; Swift's access keys are `account:user`."""
    account, _, user = access_key.partition(":")
    options = {
        "tempauth": f"user_{account}_{user} = {secret_key} .admin",
        "s3api": "location = us-east-1",
        "versioned_writes": "allow_object_versioning = true",
    }
    filters = [f"[filter:{name}]\nuse = egg:swift#{name}\n{options.get(name, '')}\n" for name in FILTERS.split()]
    return f"""
[pipeline:main]
pipeline = {FILTERS} proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
{"".join(filters)}"""


if __name__ == "__main__":
    port = int(sys.argv[4]) if sys.argv[4:] else 0
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], port, *sys.argv[5:6])
