"""The lab's S3: moto's server in a process of its own, on loopback, with dummy keys.

``python -m console.lab.s3 --port N --bucket NAME`` serves until it is terminated or its standard
input ends; the first line on standard output is the port. Objects live as long as the process;
those over ``MOTO_S3_DEFAULT_KEY_BUFFER_SIZE`` bytes lie in unnamed files in ``TMPDIR``.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import signal
import sys

from console.lab import ports

BUCKET = "stoker-lab"
KEY_ID = "lab"
SECRET = "lab-secret"
SPILL = 1 << 16
"""Objects over so many bytes go to a file: batches add up, and moto would hold them in memory."""


def installed() -> bool:
    """Whether the extra ``stoker[lab]`` is there."""
    return all(importlib.util.find_spec(name) for name in ("moto", "flask", "flask_cors"))


def credentials() -> str:
    """The text of a credentials file with the dummy keys."""
    keys = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET}
    more = {"AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
    return "".join(f"{name}={value}\n" for name, value in {**keys, **more}.items())


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(prog="python -m console.lab.s3", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="a free one by default")
    parser.add_argument("--bucket", default=BUCKET)
    options = parser.parse_args()
    if options.port and not ports.free(options.port):
        sys.exit(f"port {options.port} is taken")  # moto's thread would only hang
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = ThreadedMotoServer("127.0.0.1", options.port, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    client = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id=KEY_ID,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )
    client.create_bucket(Bucket=options.bucket)
    print(port, flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C belongs to whoever started us
    while os.read(0, 4096):
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
