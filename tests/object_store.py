"""An S3 server (moto's, in memory) on this machine's loopback, for tests of what is written to object stores."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import boto3
import s3fs
from moto.server import ThreadedMotoServer

BUCKET = "checkpoints"


@contextmanager
def object_store() -> Iterator[str]:
    """Serve an empty bucket, and give its URL; this process and those that it starts find the server by the environment."""
    # Its lines of requests would go to the stderr of the test in which the first was written, and complain once that is closed.
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        environment = {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        before = {name: os.environ.get(name) for name in environment}
        os.environ.update(environment)
        s3fs.S3FileSystem.clear_instance_cache()
        try:
            boto3.client("s3").create_bucket(Bucket=BUCKET)
            yield f"s3://{BUCKET}"
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
            s3fs.S3FileSystem.clear_instance_cache()
    finally:
        server.stop()
