"""Object-store sources that refuse access or are unreachable: reported as such, without secrets."""

from __future__ import annotations

import email.utils
import io
import logging
import os
import socket
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import boto3
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from object_server import Fault, Proxy, Request, environment_of, running_server

from stepladder.config.options import PrepareConfig
from stepladder.data import open_table
from stepladder.data.prepare.prepare import prepare
from stepladder.data.remote import arrow_files, s3
from stepladder.data.remote.places import ObjectPlace
from stepladder.data.remote.retries import RetryPolicy
from stepladder.data.remote.s3 import S3Objects
from stepladder.errors import (
    DataError,
    MissingExtraError,
    ResourceError,
    StepladderError,
    UsageError,
)

SECRET = "wJalrXUtnFEMIcanary"
QUICK = RetryPolicy(patience_s=0.6, first_patience_s=0.3, first_pause_s=0.01, max_pause_s=0.05)

Act = Callable[[str], object]


@pytest.fixture(scope="module")
def server() -> Iterator[Proxy]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with running_server() as proxy:
        proxy.empty("photos")
        for name, data in (("table/a.parquet", rows()), ("tars/0.tar", tar())):
            client = boto3.client(
                "s3",
                endpoint_url=proxy.url,
                region_name="us-east-1",
                aws_access_key_id="test",
                aws_secret_access_key="test",
            )
            client.put_object(Bucket="photos", Key=name, Body=data, ACL="public-read")
        yield proxy


@pytest.fixture
def proxy(server: Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Proxy:
    """A server with a table and a tar in a bucket, with short timeouts."""
    for name, value in environment_of(server, secret=SECRET).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(arrow_files, "S3Objects", partial(S3Objects, policy=QUICK))
    arrow_files._opened.cache_clear()
    monkeypatch.chdir(tmp_path)
    server.reset()
    return server


def rows() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"image": [b"x" * 100] * 4, "label": [0, 1, 0, 1]}), file)
    return file.getvalue()


def tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as made:
        for row in range(60):
            info = tarfile.TarInfo(f"{row}.cls")
            info.size = 1
            made.addfile(info, io.BytesIO(b"0"))
    return file.getvalue()


def prepared(place: str) -> object:
    return prepare(PrepareConfig(source=Path(place), out=Path("store"), workers=1))


def anything(request: Request) -> bool:
    return True


def is_read(request: Request) -> bool:
    return request.method == "GET" and "list-type" not in request.path


def refusal(act: Act, place: str) -> StepladderError:
    """Return the error, which must name bucket and key, but no account keys."""
    with pytest.raises(StepladderError) as caught:
        act(place)
    told = str(caught.value)
    assert str(caught.value.where).startswith(place)
    assert SECRET not in told
    assert "AKIAcanary" not in told
    return caught.value


CASES = (
    (prepared, "s3://photos/table"),
    (prepared, "s3://photos/table/a.parquet"),
    (prepared, "s3://photos/tars/0.tar"),
    (open_table, "s3://photos/table"),
    (open_table, "s3://photos/table/a.parquet"),
)
ACTS = pytest.mark.parametrize(("act", "place"), CASES)
REFUSALS = (
    (403, "AccessDenied", ResourceError, "access is denied (AccessDenied)"),
    (403, "InvalidAccessKeyId", ResourceError, "the access key is unknown"),
    (403, "SignatureDoesNotMatch", ResourceError, "the secret key does not match"),
    (400, "ExpiredToken", ResourceError, "the credentials have expired"),
    (301, "PermanentRedirect", UsageError, "the bucket photos is in another region"),
)


@pytest.mark.parametrize(
    ("act", "place", "status", "code", "kind", "words"),
    [
        pytest.param(
            *case,
            *refused,
            marks=() if case is CASES[0] or refused is REFUSALS[0] else pytest.mark.thorough,
        )
        for case in CASES
        for refused in REFUSALS
    ],
)
def test_a_refusal_is_reported_as_such(
    act: Act, place: str, status: int, code: str, kind: type, words: str, proxy: Proxy
) -> None:
    proxy.faults = [Fault(anything, status=status, code=code)]
    error = refusal(act, place)
    assert isinstance(error, kind)
    assert words in error.what
    assert "did not respond" not in str(error)
    assert "same command again" not in str(error)
    assert "are kept" not in str(error)


@pytest.mark.parametrize("key", ["src", "src/a.parquet", "0.tar", "*.parquet"])
def test_a_bucket_that_is_not_there_is_named(key: str, proxy: Proxy) -> None:
    for act in (prepared, open_table):
        error = refusal(act, f"s3://absent/{key}")
        assert "bucket" in error.what


@ACTS
def test_a_clock_that_is_wrong_is_reported(act: Act, place: str, proxy: Proxy) -> None:
    date = email.utils.formatdate(time.time() - 3600, usegmt=True)
    skewed = Fault(anything, status=403, code="RequestTimeTooSkewed", headers={"Date": date})
    proxy.faults = [skewed]
    assert "the clock of this machine is 36" in refusal(act, place).what


@ACTS
def test_missing_credentials_are_reported_where_they_are_needed(
    act: Act, place: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    proxy.faults = [Fault(anything, status=403, code="AccessDenied")]
    error = refusal(act, place)
    assert error.what == "no credentials were found"
    assert "AWS_PROFILE" in str(error.fix)


@ACTS
def test_a_bucket_that_may_only_be_listed_is_reported(act: Act, place: str, proxy: Proxy) -> None:
    proxy.faults = [Fault(is_read, status=403, code="AccessDenied")]
    error = refusal(act, place)
    assert "access is denied" in error.what
    assert str(error.where).startswith(("s3://photos/table", "s3://photos/tars/0.tar"))


@ACTS
def test_without_boto3_the_install_line_is_reported(
    act: Act, place: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'stepladder\[s3\]'"):
        act(place)


@ACTS
def test_a_server_that_throttles_is_reported_after_trying_again(
    act: Act, place: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = replace(QUICK, patience_s=3.0, first_patience_s=3.0)  # for a busy machine
    monkeypatch.setattr(arrow_files, "S3Objects", partial(S3Objects, policy=patient))
    proxy.faults = [Fault(anything, status=503, code="SlowDown")]
    with pytest.warns(
        UserWarning, match=r"the server responded with 503( \(SlowDown\))?; retrying"
    ):
        error = refusal(act, place)
    assert "the server responded with 503" in error.what
    assert "never responded" not in str(error)


@ACTS
def test_a_server_that_is_not_there_is_given_up_as_one_of_stores_is(
    act: Act, place: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.warns(UserWarning, match="the connection failed; retrying") as told:
        error = refusal(act, place)
    assert len(told) == 1  # and no other request waited
    assert "the connection failed" in error.what
    assert "The server never responded: check the address" in str(error.fix)
    assert RetryPolicy().first_patience_s == 15


def test_a_server_that_takes_connections_and_never_answers_is_given_up_after_two_tries(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_timeout_s = s3._FIRST_TIMEOUT_S
    monkeypatch.setattr(s3, "_FIRST_TIMEOUT_S", QUICK.first_patience_s / 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.warns(UserWarning, match="did not respond in time; retrying"):
            error = refusal(open_table, "s3://photos/table")
    assert error.what == "cannot be accessed: the server did not respond in time"
    assert str(error.why).startswith("Tried 2 times")
    assert RetryPolicy().first_patience_s == 2 * first_timeout_s


def test_a_public_bucket_is_read_without_credentials(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    source = open_table("s3://photos/table", columns=["label"])
    assert source.read(np.arange(4)).inputs["label"].tolist() == [0, 1, 0, 1]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_reads_too(proxy: Proxy) -> None:
    files = arrow_files.object_filesystem()
    path = "photos/table/a.parquet"
    assert files.open_input_file(path).read() == rows()
    child = os.fork()
    if child == 0:
        os._exit(files.open_input_file(path).read() == rows())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_a_file_is_read_by_ranges_and_ahead_where_they_follow_one_another(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_files, "_LARGE_BYTES", 1000)
    data = tar()
    file = arrow_files.object_filesystem().open_input_file("photos/tars/0.tar")
    assert file.size() == len(data)
    for start, size in ((0, 2000), (5000, 10), (2000, 1500), (9000, 3000), (12000, len(data))):
        file.seek(start)
        assert file.read(size) == data[start : start + size]
    file.seek(0)
    assert b"".join(iter(lambda: file.read(1500), b"")) == data
    with pytest.raises(NotImplementedError):
        arrow_files.object_filesystem().delete_file("photos/tars/0.tar")


def test_a_file_that_is_replaced_while_it_is_read_is_not_mixed(proxy: Proxy) -> None:
    place = ObjectPlace("photos", "replaced")
    S3Objects().put_bytes(place, b"old" * 1000)
    file = arrow_files.object_filesystem().open_input_file("photos/replaced")
    assert file.read(3) == b"old"
    S3Objects().put_bytes(place, b"new" * 1000)
    with pytest.raises(DataError, match="photos/replaced: another program replaced the object"):
        file.read(3)


def test_a_way_to_a_store_is_opened_once_and_by_no_request(proxy: Proxy) -> None:
    for _ in range(2):
        arrow_files.object_filesystem()
    assert proxy.requests == []
    assert arrow_files._opened.cache_info().misses == 1


def test_a_tar_whose_connection_is_cut_is_reported_with_the_place_and_resumes(proxy: Proxy) -> None:
    proxy.faults = [Fault(is_read, cut_after=0)]
    with pytest.warns(UserWarning, match="the connection was lost; retrying"):
        error = refusal(prepared, "s3://photos/tars/0.tar")
    assert error.what == "cannot be read: the connection was lost"
    assert error.where == "s3://photos/tars/0.tar: after 0 bytes"
    assert "Parts that were read completely are kept." in str(error)
    assert "to resume" in str(error.fix)
