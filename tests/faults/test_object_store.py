"""Stores, features and checkpoints in an object store, over an unreliable network."""

from __future__ import annotations

import email.utils
import hashlib
import io
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from botocore.exceptions import ReadTimeoutError

sys.path.insert(0, str(Path(__file__).parent))
from object_server import Fault, Proxy, Request, environment_of, running_server

import stepladder
from stepladder.config.choices import OrderMode, Split
from stepladder.config.options import PrepareConfig
from stepladder.data import open_table
from stepladder.data.features.feature_files import FeatureFolder
from stepladder.data.prepare.prepare import PreparePhase, PrepareProgress, PrepareResult, prepare
from stepladder.data.reading.reader import Reader
from stepladder.data.remote import arrow_files
from stepladder.data.remote.cache import FileCache
from stepladder.data.remote.cache_part import WantedFile
from stepladder.data.remote.copies import ObjectCopies
from stepladder.data.remote.feature_copies import remote_features_folder
from stepladder.data.remote.objects import NoSuchObjectError
from stepladder.data.remote.places import ObjectPlace
from stepladder.data.remote.remote_store import RemoteShardFiles, open_shard_files
from stepladder.data.remote.retries import RetryPolicy
from stepladder.data.remote.s3 import S3Objects
from stepladder.data.remote.upload import MARKER
from stepladder.data.store.index import SUFFIX, index_path, open_index
from stepladder.data.store.manifest import MANIFEST_NAME
from stepladder.data.store.store import Store
from stepladder.errors import DataError, ResourceError, StepladderError, UsageError
from stepladder.machine.filesystem import FolderAbilities
from stepladder.task.image_classification import ImageClassification
from stepladder.training.checkpoint.checkpoint import Checkpoints
from stepladder.training.checkpoint.mirror import Mirror, bring_back

BUCKET = "photos"
SECRET = "wJalrXUtnFEMIcanary"
QUICK = RetryPolicy(patience_s=0.6, first_patience_s=0.3, first_pause_s=0.01, max_pause_s=0.05)
PLACE = ObjectPlace(BUCKET, "data/file")
DATA = hashlib.shake_128(b"file").digest(300_000)


@pytest.fixture(scope="module")
def server() -> Iterator[Proxy]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with running_server() as proxy:
        yield proxy


@pytest.fixture
def proxy(server: Proxy, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    """A server with an empty bucket and no faults, configured through AWS variables."""
    for name, value in environment_of(server, secret=SECRET).items():
        monkeypatch.setenv(name, value)
    server.reset()
    server.empty(BUCKET)
    server.requests.clear()
    return server


@pytest.fixture(scope="module")
def clients() -> dict[tuple[int, bool], Any]:
    """Clients of this process: creating one takes longer than most tests."""
    return {}


@pytest.fixture
def objects(proxy: Proxy, clients: dict[tuple[int, bool], Any]) -> Iterator[S3Objects]:
    objects = S3Objects(policy=QUICK)
    objects._clients = clients
    objects.put_bytes(PLACE, DATA)
    proxy.requests.clear()
    yield objects
    objects.close()


def is_read(request: Request) -> bool:
    return request.method == "GET" and request.path.endswith("/data/file")


def wait_until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def anything(request: Request) -> bool:
    return True


# -- one object ----------------------------------------------------------------------------------


def test_what_is_written_is_read(objects: S3Objects) -> None:
    assert objects.read(PLACE) == DATA
    assert b"".join(objects.stream(PLACE, 10, 20)) == DATA[10:20]
    info = objects.info(PLACE)
    assert info is not None
    assert (info.size_bytes, info.sha256) == (len(DATA), None)
    assert [found.place for found in objects.list_below(ObjectPlace(BUCKET, "data"))] == [PLACE]
    objects.delete(PLACE)
    assert objects.info(PLACE) is None
    with pytest.raises(NoSuchObjectError, match="s3://photos/data/file"):
        objects.read(PLACE)


def test_a_listing_continues_over_pages(objects: S3Objects) -> None:
    place = ObjectPlace(BUCKET, "many")
    for number in range(3):
        objects.put_bytes(place.join(str(number)), b"")
    objects.put_bytes(ObjectPlace(BUCKET, "many-others"), b"")
    send = objects._send
    objects._send = lambda operation, at, **asked: send(  # type: ignore[method-assign]
        operation, at, **{**asked, "MaxKeys": 2}
    )
    assert [found.place.name for found in objects.list_below(place)] == ["0", "1", "2"]


def test_a_large_file_is_sent_in_parts_with_its_sha256(
    objects: S3Objects, proxy: Proxy, tmp_path: Path
) -> None:
    data = bytes(range(256)) * (33 << 12)  # 33 MiB
    (tmp_path / "large").write_bytes(data)
    sha256 = hashlib.sha256(data).hexdigest()
    proxy.faults = [
        Fault(lambda r: "partNumber=2" in r.path, times=1, status=500, code="InternalError")
    ]
    objects.put_file(PLACE, tmp_path / "large", sha256=sha256)
    info = objects.info(PLACE)
    assert info is not None
    assert (info.size_bytes, info.sha256) == (len(data), sha256)
    assert hashlib.sha256(objects.read(PLACE)).hexdigest() == sha256
    assert sum("partNumber" in request.path for request in proxy.requests) == 4


def test_a_lost_answer_to_the_last_request_of_an_upload_is_not_a_failure(
    objects: S3Objects, proxy: Proxy, tmp_path: Path
) -> None:
    """Amazon's server would answer the second request as well; others report a missing upload."""
    (tmp_path / "large").write_bytes(bytes(17 << 20))
    sha256 = hashlib.sha256(bytes(17 << 20)).hexdigest()
    gone = Fault(
        lambda r: r.method == "POST" and "uploadId=" in r.path, status=404, code="NoSuchUpload"
    )
    proxy.faults = [gone]
    with pytest.raises(ResourceError, match="NoSuchUpload"):
        objects.put_file(PLACE, tmp_path / "large", sha256=sha256)
    proxy.faults, send = [], objects._send

    def lose(operation: str, place: ObjectPlace, **asked: Any) -> Any:
        answer = send(operation, place, **asked)
        if operation == "complete_multipart_upload":
            proxy.faults = [gone]
            raise ReadTimeoutError(endpoint_url=proxy.url)
        return answer

    objects._send = lose  # type: ignore[method-assign]
    objects.put_file(PLACE, tmp_path / "large", sha256=sha256)
    info = objects.info(PLACE)
    assert info is not None
    assert (info.size_bytes, info.sha256) == (17 << 20, sha256)


def test_a_file_that_cannot_be_sent_leaves_no_parts(
    objects: S3Objects, proxy: Proxy, tmp_path: Path
) -> None:
    (tmp_path / "large").write_bytes(bytes(17 << 20))
    proxy.faults = [Fault(lambda r: "partNumber=2" in r.path, status=403, code="AccessDenied")]
    with pytest.raises(ResourceError, match="AccessDenied"):
        objects.put_file(PLACE, tmp_path / "large", sha256="")
    assert proxy.requests[-1].method == "DELETE"
    assert objects.read(PLACE) == DATA


# -- what may pass -------------------------------------------------------------------------------


def test_a_connection_cut_in_the_body_resumes_after_the_last_byte(
    objects: S3Objects, proxy: Proxy
) -> None:
    proxy.faults = [Fault(is_read, times=2, cut_after=100_000)]
    assert objects.read(PLACE) == DATA
    spans = [request.span for request in proxy.requests if is_read(request)]
    assert spans[0] is None
    assert spans[1:] == ["bytes=100000-299999", "bytes=200000-299999"]
    assert objects.stats.num_retries == 2


def test_a_connection_cut_after_the_last_byte_is_not_a_failure(
    objects: S3Objects, proxy: Proxy
) -> None:
    proxy.faults = [Fault(is_read, times=1, cut_after=len(DATA))]
    assert objects.read(PLACE) == DATA
    assert len(proxy.requests) == 1


def test_an_object_replaced_between_two_requests_is_not_mixed(
    objects: S3Objects, proxy: Proxy
) -> None:
    proxy.faults = [Fault(is_read, times=1, cut_after=1000)]
    stream = objects.stream(PLACE)
    next(stream)
    S3Objects().put_bytes(PLACE, DATA[::-1])
    with pytest.raises(DataError, match=r"data/file: another program replaced the object"):
        list(stream)


@pytest.mark.parametrize(
    ("status", "code"),
    [(500, "InternalError"), (503, "SlowDown"), (429, "TooManyRequests"), (400, "RequestTimeout")],
)
def test_a_refusal_that_passes_is_tried_again(
    objects: S3Objects, proxy: Proxy, status: int, code: str
) -> None:
    proxy.faults = [Fault(anything, times=2, status=status, code=code)]
    assert objects.read(PLACE) == DATA
    assert len(proxy.requests) == 3


def test_retry_after_is_honoured(objects: S3Objects, proxy: Proxy) -> None:
    at = email.utils.formatdate(time.time() + 3600, usegmt=True)
    proxy.faults = [Fault(anything, times=1, status=503, headers={"Retry-After": "0"})]
    assert objects.read(PLACE) == DATA
    for value in ("3600", at):
        proxy.faults = [Fault(anything, status=503, headers={"Retry-After": value})]
        with pytest.raises(ResourceError, match=r"asked to wait 3[56]\d\d s"):
            objects.read(PLACE)


def test_throttling_without_end_names_bucket_key_and_tries(
    objects: S3Objects, proxy: Proxy
) -> None:
    proxy.faults = [Fault(anything, status=503, code="SlowDown")]
    with pytest.raises(ResourceError) as caught:
        objects.read(PLACE)
    text = str(caught.value)
    assert text.startswith(
        "s3://photos/data/file: cannot be read: the server responded with 503 (SlowDown)\n"
    )
    assert f"Tried {len(proxy.requests)} times within" in text
    assert SECRET not in text


def test_a_server_that_is_not_there_is_named_by_what_sets_it(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(ResourceError, match="AWS_ENDPOINT_URL") as caught:
        S3Objects(policy=QUICK).read(PLACE)
    assert "s3://photos/data/file: cannot be read: the connection failed" in str(caught.value)


# -- what will not pass --------------------------------------------------------------------------


def only_error(act: Callable[[], Any], proxy: Proxy, *, num_requests: int = 1) -> StepladderError:
    """Return the error of a call, which must be raised without retries and contain no secret."""
    proxy.requests.clear()
    with pytest.raises(StepladderError) as caught:
        act()
    assert len(proxy.requests) == num_requests
    assert SECRET not in str(caught.value)
    assert caught.value.fix
    return caught.value


def test_missing_credentials(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    error = only_error(lambda: S3Objects().read(PLACE), proxy, num_requests=0)
    assert "s3://photos/data/file: no credentials were found" in str(error)
    assert "AWS_PROFILE" in str(error)


def test_a_profile_that_is_not_there(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    error = only_error(lambda: S3Objects().read(PLACE), proxy, num_requests=0)
    assert "the profile that AWS_PROFILE names" in str(error)


def test_an_invalid_address(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"user:{SECRET}@nowhere")
    error = only_error(lambda: S3Objects().read(PLACE), proxy, num_requests=0)
    assert "AWS_ENDPOINT_URL" in str(error)


def test_a_missing_bucket(objects: S3Objects, proxy: Proxy) -> None:
    place = ObjectPlace("absent", "store/manifest.json")
    error = only_error(lambda: objects.read(place), proxy)
    assert "s3://absent/store/manifest.json: the bucket absent does not exist" in str(error)
    assert isinstance(only_error(lambda: objects.info(place), proxy, num_requests=2), UsageError)
    assert isinstance(only_error(lambda: objects.put_bytes(place, b""), proxy), UsageError)


@pytest.mark.parametrize("bucket", ["no bucket", "ab"])
def test_a_name_that_no_bucket_has(objects: S3Objects, bucket: str) -> None:
    with pytest.raises(UsageError):
        objects.read(ObjectPlace(bucket, "key"))


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (403, "AccessDenied", "access is denied"),
        (403, "InvalidAccessKeyId", "the access key is unknown"),
        (403, "SignatureDoesNotMatch", "the secret key does not match"),
        (400, "ExpiredToken", "the credentials have expired"),
        (418, "Teapot", "the object store rejected the request: 418 (Teapot)"),
    ],
)
def test_a_refusal_that_stays_is_reported_at_once(
    objects: S3Objects, proxy: Proxy, status: int, code: str, said: str
) -> None:
    proxy.faults = [Fault(is_read, status=status, code=code)]
    error = only_error(lambda: objects.read(PLACE), proxy)
    assert str(error).startswith("s3://photos/data/file: ")
    assert said in str(error)


def test_a_bucket_in_another_region_is_searched_and_then_reported(
    objects: S3Objects, proxy: Proxy
) -> None:
    proxy.faults = [Fault(is_read, status=301, code="PermanentRedirect")]
    error = only_error(lambda: objects.read(PLACE), proxy, num_requests=3)  # as boto3 does
    assert "s3://photos/data/file: the bucket photos is in another region" in str(error)


@pytest.mark.parametrize(("ahead_s", "how"), [(1800, "ahead of"), (-1800, "behind")])
def test_a_clock_that_is_wrong_is_reported_with_the_difference(
    objects: S3Objects, proxy: Proxy, ahead_s: float, how: str
) -> None:
    headers = {"Date": email.utils.formatdate(time.time() - ahead_s, usegmt=True)}
    fault = Fault(anything, status=403, code="RequestTimeTooSkewed", headers=headers)
    proxy.faults = [fault]
    for act in (lambda: objects.read(PLACE), lambda: objects.info(PLACE)):
        text = str(only_error(act, proxy))
        assert "because the clock of this machine is" in text
        assert any(f"{seconds} s {how} the server's" in text for seconds in (1799, 1800, 1801))


# -- a store -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, build_store: Any) -> Path:
    folder = tmp_path_factory.mktemp("local") / "store"
    build_store(folder, num_rows={"train": 60, "val": 10}, size=16, shards=4)
    return folder


@pytest.fixture
def files(objects: S3Objects, store: Path, tmp_path: Path) -> Iterator[RemoteShardFiles]:
    place = ObjectPlace(BUCKET, "stores/food")
    for path in store.iterdir():
        objects.put_bytes(place.join(path.name), path.read_bytes())
    cache = FileCache(tmp_path / "cache", 10_000_000)
    files = RemoteShardFiles(place, objects, cache)
    yield files
    files.close()


def test_a_store_is_read_file_by_file(files: RemoteShardFiles, store: Path, proxy: Proxy) -> None:
    manifest = files.manifest()
    for info in manifest.shards:
        path = files.path(info)
        assert path.read_bytes() == (store / info.name).read_bytes()
        assert open_index(index_path(path), info) is not None
    first = manifest.shards[0]
    assert files.path(first) == files.path(first)
    stats = files.stats
    assert (stats.num_hits, stats.num_misses) == (2, len(manifest.shards))
    assert stats.num_bytes > sum(info.size_bytes for info in manifest.shards)
    assert stats.wait_s > 0


def test_a_prefetched_file_is_a_hit_if_the_cache_had_it(
    files: RemoteShardFiles, objects: S3Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = files.manifest().shards[0]
    get_ahead = FileCache.get_ahead
    begun = threading.Event()

    def slow(cache: FileCache, file: WantedFile) -> bool:
        begun.set()
        time.sleep(0.2)  # so that it is being fetched when it is requested
        return get_ahead(cache, file)

    monkeypatch.setattr(FileCache, "get_ahead", slow)
    again = RemoteShardFiles(files.place, objects, FileCache(tmp_path / "cache", 10_000_000))
    for reader, counts in ((files, (0, 1)), (again, (1, 0))):
        begun.clear()
        reader.expect([first])
        assert begun.wait(10)
        reader.path(first)
        assert (reader.stats.num_hits, reader.stats.num_misses) == counts
    again.release(first)


def test_labels_of_a_far_split_fetch_no_picture(
    files: RemoteShardFiles, store: Path, tmp_path: Path
) -> None:
    here, there = Store.open(store), Store.open(store, files=files)
    far, near = there.split(Split.TRAIN), here.split(Split.TRAIN)
    assert far is not None
    assert near is not None
    assert far.labels.tolist() == near.labels.tolist()
    assert files.stats.num_misses == 0
    assert (near.is_near, far.is_near) == (True, False)
    rows = np.array([5, 0, 3])
    assert np.array_equal(far.read(rows).inputs, near.read(rows).inputs)
    assert files.stats.num_misses > 0


def test_files_of_a_closed_reader_make_room_for_another_split(
    objects: S3Objects, store: Path, tmp_path: Path
) -> None:
    place = ObjectPlace(BUCKET, "stores/food")
    for path in store.iterdir():
        objects.put_bytes(place.join(path.name), path.read_bytes())
    sizes = [info.size_bytes for info in Store.open(store).manifest.shards]
    cache = FileCache(tmp_path / "cache", sum(sizes) - min(sizes) // 2)  # all but one
    files = RemoteShardFiles(place, objects, cache)
    opened = Store.open(store, files=files)
    for split in (Split.TRAIN, Split.VAL, Split.TRAIN):
        source = opened.split(split)
        assert source is not None
        reader = Reader(source, seed=0, global_batch_size=8, mode=OrderMode.SEQUENTIAL, threads=1)
        assert sum(len(batch.ids) for batch in reader.epoch(0)) == len(source)
        reader.close()
    files.close()


def test_the_size_suggested_for_a_small_cache_is_enough(
    files: RemoteShardFiles, objects: S3Objects, store: Path, tmp_path: Path
) -> None:
    def read_all(max_bytes: int) -> None:
        far = RemoteShardFiles(files.place, objects, FileCache(tmp_path / "small", max_bytes))
        opened = Store.open(store, files=far)
        for split in (Split.TRAIN, Split.VAL):  # none of them is closed
            source = opened.split(split)
            assert source is not None
            source.expect(np.arange(len(source)))
            source.read(np.arange(len(source)))

    with pytest.raises(ResourceError) as caught:
        read_all(1000)
    told = re.search(r"--data.max-cache-bytes (\d+)", str(caught.value.fix))
    assert told is not None
    read_all(int(told[1]))


def test_indexes_that_the_cache_has_are_not_fetched_again(
    files: RemoteShardFiles, objects: S3Objects, proxy: Proxy, tmp_path: Path
) -> None:
    first, *others = files.manifest().shards
    told = files.index(first)
    files.path(first)
    files.release(first)
    proxy.requests.clear()
    again = RemoteShardFiles(files.place, objects, FileCache(tmp_path / "cache", 10_000_000))
    assert again.index(first) == told
    assert proxy.requests == []
    (kept,) = (tmp_path / "cache").glob(f"*{first.name}{SUFFIX}")
    kept.write_bytes(b"x" + kept.read_bytes()[1:])
    assert again.index(first) == told
    assert [again.index(info) is None for info in others] == [False] * len(others)
    assert len(proxy.requests) == 1 + len(others)


def test_what_is_expected_comes_in_its_order_before_it_is_asked_for(
    files: RemoteShardFiles, proxy: Proxy
) -> None:
    manifest = files.manifest()
    wanted = [manifest.shards[at] for at in (5, 2, 7, 0)]
    files.expect(wanted)
    for info in wanted:
        files.path(info)
    asked = [
        r.path.rpartition("/")[2]
        for r in proxy.requests
        if r.path.endswith(".parquet") and r.method == "GET"
    ]
    assert sorted(asked) == sorted(info.name for info in wanted)  # each once, from any of them
    files.expect(manifest.shards)
    here = files._cache.folder
    wait_until(lambda: len(list(here.glob("*.parquet"))) == len(manifest.shards))
    before = files.stats.num_misses
    for info in manifest.shards:
        files.path(info)
    assert files.stats.num_misses == before


def test_a_window_goes_through_a_cache_that_is_smaller_than_the_store(
    files: RemoteShardFiles, store: Path, tmp_path: Path
) -> None:
    manifest = files.manifest()
    largest = max(info.size_bytes for info in manifest.shards)
    small = RemoteShardFiles(
        files.place, files._objects, FileCache(tmp_path / "small", 3 * largest)
    )
    small.manifest()
    for _ in range(2):
        small.expect(manifest.shards)
        for at, info in enumerate(manifest.shards):
            assert small.path(info).read_bytes() == (store / info.name).read_bytes()
            if at:
                small.release(manifest.shards[at - 1])
        small.release(manifest.shards[-1])
    assert (
        sum(path.stat().st_size for path in (tmp_path / "small").glob("*.parquet")) <= 3 * largest
    )


def test_a_connection_cut_in_the_middle_of_a_shard(
    files: RemoteShardFiles, store: Path, proxy: Proxy
) -> None:
    info = files.manifest().shards[0]
    proxy.faults = [Fault(lambda r: r.path.endswith(info.name), times=3, cut_after=1000)]
    assert files.path(info).read_bytes() == (store / info.name).read_bytes()
    assert files.stats.num_retries == 3


def test_what_could_not_be_fetched_ahead_is_reported_when_it_is_asked_for(
    files: RemoteShardFiles, proxy: Proxy
) -> None:
    good, bad = files.manifest().shards[:2]
    proxy.faults = [Fault(lambda r: r.path.endswith(bad.name), status=503, code="SlowDown")]
    files.expect([bad, good])
    files.path(good)
    with pytest.raises(ResourceError, match=f"s3://photos/stores/food/{bad.name}: "):
        files.path(bad)
    proxy.faults = []
    files.path(bad)


def test_a_missing_index_is_not_an_error(files: RemoteShardFiles, objects: S3Objects) -> None:
    info = files.manifest().shards[0]
    objects.delete(files.place.join(info.name + SUFFIX))
    assert files.path(info).stat().st_size == info.size_bytes


def test_a_store_that_was_replaced_is_called_so(
    files: RemoteShardFiles, objects: S3Objects, build_store: Any, tmp_path: Path
) -> None:
    old = files.manifest()
    build_store(tmp_path / "other", num_rows={"train": 9, "val": 3}, size=16, shards=1, seed=1)
    for path in (tmp_path / "other").iterdir():
        objects.put_bytes(files.place.join(path.name), path.read_bytes())
    objects.delete(files.place.join(old.shards[1].name))
    for info in old.shards[:2]:  # other bytes under the same name, and missing
        with pytest.raises(DataError, match="another program replaced the store"):
            files.path(info)


def test_damage_that_is_not_a_replacement_names_the_object(
    files: RemoteShardFiles, objects: S3Objects
) -> None:
    info = files.manifest().shards[0]
    objects.put_bytes(files.place.join(info.name), b"?" * info.size_bytes)
    with pytest.raises(
        DataError, match=f"s3://photos/stores/food/{info.name}: the downloaded file is not the one"
    ):
        files.path(info)


def test_verify_reads_what_is_there_and_not_the_cache(
    files: RemoteShardFiles, objects: S3Objects
) -> None:
    info = files.manifest().shards[0]
    files.path(info)
    store = str(files.place)
    assert stepladder.verify(store) == []
    objects.put_bytes(files.place.join(info.name), b"?" * info.size_bytes)
    assert stepladder.verify(store) == [
        f"shard {info.name}: the downloaded file is not the one that the store's manifest.json "
        "lists (its size or sha256 differs)"
    ]
    assert "there is no store at this address" in stepladder.verify("s3://photos/none")[0]


def test_no_store_there_says_how_to_make_one(objects: S3Objects, tmp_path: Path) -> None:
    files = open_shard_files(Path("s3://photos/none"), cache_dir=tmp_path, max_cache_bytes=10)
    with pytest.raises(
        DataError, match=r"s3://photos/none: there is no store at this address"
    ) as caught:
        files.manifest()
    assert "--out s3://photos/none" in str(caught.value)


# -- prepare -------------------------------------------------------------------------------------


def prepared(
    photos: Path, *, told: list[PrepareProgress] | None = None, **options: Any
) -> PrepareResult:
    config = PrepareConfig(source=photos, out=Path("s3://photos/made/store"), **options)
    return prepare(config, on_progress=(told if told is not None else []).append)


def is_write(request: Request) -> bool:
    return request.method == "PUT" and "/made/store/" in request.path


def keys(objects: S3Objects) -> dict[str, int]:
    found = objects.list_below(ObjectPlace(BUCKET, "made/store"))
    return {info.place.name: info.size_bytes for info in found}


def test_a_store_made_in_an_object_store_is_the_one_made_in_a_folder(
    objects: S3Objects,
    proxy: Proxy,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    here = prepare(PrepareConfig(source=photos, out=tmp_path / "store", size=16))
    told: list[PrepareProgress] = []
    result = prepared(photos, told=told, size=16)
    assert result.manifest == here.manifest
    assert told[-1].phase is PreparePhase.UPLOAD
    assert told[-1].done == told[-1].total == len(keys(objects)) - 1  # the manifest is last
    written = [request.path for request in proxy.requests if is_write(request)]
    assert written[0].endswith(MARKER)
    assert written[-1].endswith(MANIFEST_NAME)
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "store").iterdir()}
    assert {name: size for name, size in keys(objects).items() if name != "prepare_log.json"} == {
        name: size for name, size in sizes.items() if name != "prepare_log.json"
    }
    task = ImageClassification(result.folder)
    train = task.data(Split.TRAIN)
    assert train is not None
    local = ImageClassification(tmp_path / "store").data(Split.TRAIN)
    assert local is not None
    rows = np.arange(len(local))
    mine, theirs = (np.empty((len(local), 16, 16, 3), np.uint8) for _ in range(2))
    train.read_into(rows, mine)
    local.read_into(rows, theirs)
    assert np.array_equal(mine, theirs)
    task.store.close()
    proxy.requests.clear()
    assert prepared(photos, size=16).is_up_to_date
    assert not any(is_write(request) for request in proxy.requests)
    assert not list(tmp_path.glob("stepladder-cache.made/**/*.parquet"))


def test_an_upload_that_was_cut_shows_no_store_and_resumes(
    objects: S3Objects, proxy: Proxy, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refuse = Fault(lambda r: is_write(r) and "val-all.parquet" in r.path, status=403)
    proxy.faults = [refuse]
    with pytest.raises(ResourceError, match=r"s3://photos/made/store/val-all.parquet"):
        prepared(photos, size=16)
    assert MANIFEST_NAME not in keys(objects)
    assert "train-all.parquet" in keys(objects)
    proxy.faults = []
    proxy.requests.clear()
    result = prepared(photos, size=16)
    again = [r.path for r in proxy.requests if is_write(r) and "train-all.parquet" in r.path]
    assert again == []
    assert MARKER not in keys(objects)
    assert sum(result.manifest.num_rows(split) for split in Split) == 24


def test_a_store_that_is_replaced_is_never_mixed(
    objects: S3Objects, proxy: Proxy, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prepared(photos, size=16)
    with pytest.raises(
        UsageError,
        match=r"made from other pictures or options: size \(that store has 16, you requested 24\)",
    ):
        prepared(photos, size=24)
    proxy.requests.clear()
    prepared(photos, size=24, overwrite=True)
    acts = [r for r in proxy.requests if r.method in ("PUT", "DELETE") and "/made/store" in r.path]
    names = [(r.method, r.path.partition("?")[0].rpartition("/")[2]) for r in acts]
    gone, back = names.index(("DELETE", MANIFEST_NAME)), names.index(("PUT", MANIFEST_NAME))
    shards = [at for at, (_, name) in enumerate(names) if name.endswith(".parquet")]
    assert gone < min(shards)
    assert max(shards) < back


def test_a_place_of_other_things_is_left_alone(
    objects: S3Objects, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    objects.put_bytes(ObjectPlace(BUCKET, "made/store/thesis.tex"), b"")
    with pytest.raises(
        UsageError, match=r"other objects at the address for the store, such as thesis.tex"
    ):
        prepared(photos)


# -- features and checkpoints --------------------------------------------------------------------


def write_features(root: Path) -> torch.Tensor:
    features = torch.arange(12.0).reshape(4, 3)
    with FeatureFolder(root, {"trunk": "t"}).writing(4) as writer:
        assert writer is not None
        writer.append(features, None, seconds=1)
        writer.publish()
    return features


def test_features_are_shared_next_to_the_store(
    objects: S3Objects, proxy: Proxy, tmp_path: Path
) -> None:
    store = ObjectPlace(BUCKET, "stores/food")
    features = write_features(remote_features_folder(store, tmp_path / "one"))
    kept = [r.path for r in proxy.requests if r.method == "PUT"]
    assert kept[-1].endswith("/manifest.json")
    assert all("/stores/food.features/" in path for path in kept)
    elsewhere = remote_features_folder(store, tmp_path / "another machine")
    held = FeatureFolder(elsewhere, {"trunk": "t"}).load()
    assert held is not None
    assert torch.equal(held.features, features)
    assert FeatureFolder(elsewhere, {"trunk": "other"}).load() is None


def test_features_stay_here_where_the_bucket_may_only_be_read(
    objects: S3Objects, proxy: Proxy, tmp_path: Path
) -> None:
    root = remote_features_folder(ObjectPlace(BUCKET, "stores/food"), tmp_path / "cache")
    proxy.faults = [Fault(lambda r: r.method == "PUT", status=403, code="AccessDenied")]
    with pytest.warns(
        UserWarning,
        match="features could not be uploaded, .* in the local cache: s3://photos/stores/food",
    ):
        features = write_features(root)
    held = FeatureFolder(root, {"trunk": "t"}).load()
    assert held is not None
    assert torch.equal(held.features, features)


def save(run: Path, *steps: int) -> Checkpoints:
    run.mkdir(exist_ok=True)
    (run / "config.yaml").write_text("seed: 0\n")
    checkpoints = Checkpoints(run / "checkpoints", keep_last=2)
    for step in steps:
        tensors = {"model": {"weight": torch.full((3,), float(step))}}
        frozen = {"trunk": torch.zeros(100)}
        checkpoints.save(f"step-{step:09d}", tensors, {"step": step}, frozen)
        checkpoints.prune(())
    return checkpoints


def test_checkpoints_are_mirrored_pruned_and_brought_back(
    objects: S3Objects, proxy: Proxy, tmp_path: Path
) -> None:
    place = ObjectPlace(BUCKET, "runs/first")
    run, lost = tmp_path / "run", tmp_path / "lost"
    mirror = Mirror(ObjectCopies(objects, place), run)
    save(run, 1, 2)
    said: list[str] = []
    proxy.faults = [Fault(lambda r: r.path.endswith("state.json"), times=1, status=503)]
    with mirror.running(said.append):
        mirror.write({"event": "checkpoint"})
        wait_until(lambda: any(r.path.endswith("1/MANIFEST.json") for r in proxy.requests))
        save(run, 3)
        mirror.write({"event": "checkpoint"})
    assert said == []
    back = S3Objects(policy=QUICK)
    kept = {info.place.key.partition("/checkpoints/")[2] for info in back.list_below(place)}
    assert {name.partition("/")[0] for name in kept if name.startswith("step")} == {
        "step-000000002",
        "step-000000003",
    }
    assert sum("frozen-" in name for name in kept) == 1
    assert sum(r.method == "PUT" and "frozen-" in r.path for r in proxy.requests) == 1
    assert bring_back(ObjectCopies(back, place), lost, file_system=FolderAbilities()) == [
        "step-000000003 was fetched from the mirror s3://photos/runs/first"
    ]
    loaded = Checkpoints(lost / "checkpoints").newest()
    assert loaded is not None
    assert loaded.weights["weight"].tolist() == [3.0, 3.0, 3.0]
    assert loaded.weights["trunk"].shape == (100,)


def test_a_mirror_without_a_bucket_stops_nothing_and_is_reported(
    objects: S3Objects, tmp_path: Path
) -> None:
    save(tmp_path / "run", 1)
    mirror = Mirror(ObjectCopies(objects, ObjectPlace("absent", "run")), tmp_path / "run")
    said: list[str] = []
    with mirror.running(said.append):
        mirror.write({"event": "checkpoint"})
    assert "the bucket absent does not exist" in said[0]
    assert said[1].startswith("the newest checkpoint was not copied to the mirror s3://absent/run")


# -- tables --------------------------------------------------------------------------------------


@pytest.fixture
def table(objects: S3Objects, monkeypatch: pytest.MonkeyPatch) -> str:
    """A table of two files, read with short timeouts."""
    monkeypatch.setattr(arrow_files, "S3Objects", partial(S3Objects, policy=QUICK))
    arrow_files._opened.cache_clear()
    for name, start in (("a", 0), ("b", 5)):
        made = io.BytesIO()
        pq.write_table(pa.table({"x": range(start, start + 5)}), made, row_group_size=2)
        objects.put_bytes(ObjectPlace(BUCKET, f"table/{name}.parquet"), made.getvalue())
    return f"s3://{BUCKET}/table"


def is_read_of_b(request: Request) -> bool:
    return request.method == "GET" and request.path.endswith("/table/b.parquet")


@pytest.mark.parametrize("name", ["", "/?.parquet", "/*"])
def test_a_table_is_read_over_a_connection_that_is_cut_once(
    table: str, proxy: Proxy, name: str
) -> None:
    proxy.faults = [Fault(is_read_of_b, times=1, cut_after=10)]
    with pytest.warns(UserWarning, match="b.parquet: the connection was lost; retrying"):
        source = open_table(table + name)
    assert source.read(np.arange(10)).inputs["x"].tolist() == list(range(10))
    assert sum(map(is_read_of_b, proxy.requests)) > 1


def test_a_table_whose_connection_is_cut_again_and_again_is_not_called_damaged(
    table: str, proxy: Proxy
) -> None:
    source = open_table(table)
    proxy.faults = [Fault(is_read_of_b, cut_after=0)]
    acts = [lambda: open_table(table), lambda: source.read(np.array([7]))]
    with pytest.warns(UserWarning, match="b.parquet: the connection was lost; retrying"):
        refused = [_refusal(act) for act in acts]
    for error in refused:
        assert str(error.where).startswith(f"{table}: b.parquet")
        assert "Check the network" in str(error.fix)


def _refusal(act: Callable[[], Any]) -> ResourceError:
    with pytest.raises(ResourceError, match="cannot be read: the connection was lost") as caught:
        act()
    return caught.value


def test_a_table_that_may_not_be_listed_is_reported_without_a_secret(
    table: str, proxy: Proxy
) -> None:
    proxy.faults = [Fault(anything, status=403, code="AccessDenied")]
    with pytest.raises(ResourceError, match=r"access is denied \(AccessDenied\)") as caught:
        open_table(table)
    assert caught.value.where == table
    assert SECRET not in str(caught.value)
    with pytest.raises(UsageError, match="the address contains an access key"):
        open_table(f"s3://AKIAcanary:{SECRET}@{BUCKET}/table")
