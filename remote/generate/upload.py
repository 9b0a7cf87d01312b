"""Sealed batches to S3, in a thread of its own that generation never waits for.

An object's key is the prefix and the file's name, so that a second upload of the same batch
finds the first. What stands there already is compared, never overwritten: each object carries
the run's id and the batch's sha256 in its metadata. boto3 is imported only here and only in the
thread, since it costs a third of a second.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from remote.generate.records import Batch, now
from remote.protocol import S3Spec

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0

_NAMED = {
    "ExpiredToken": "the credentials have expired: renew them, they are read again by themselves",
    "ExpiredTokenException": "the credentials have expired: renew them, they are read again",
    "TokenRefreshRequired": "the credentials have expired: renew them, they are read again",
    "InvalidToken": "the session token is not valid: check AWS_SESSION_TOKEN",
    "InvalidAccessKeyId": "the access key is unknown: check AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the secret key is wrong: check AWS_SECRET_ACCESS_KEY",
    "RequestTimeTooSkewed": "this machine's clock is wrong: set the time",
    "NoSuchBucket": "there is no such bucket: create it, or correct [run.s3] bucket",
    "AccessDenied": "access denied: these credentials may not write there",
    "AllAccessDisabled": "access denied: access to the bucket is disabled",
    "403": "access denied: these credentials may not write there",
    "404": "there is no such bucket: create it, or correct [run.s3] bucket",
}


_DENIED = ("403", "AccessDenied", "AllAccessDisabled", "Forbidden")


class LostError(Exception):
    """This batch will not go up, however often it is tried: its file is gone or not what it was,
    or another object stands in its place, which is not overwritten."""


class HiddenError(LostError):
    """What stands in this batch's place may not be looked at."""


_PASSES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN}
"""Errors of reading a file that say nothing of the file."""


class Uploader:
    """Uploads every batch it is offered, in order, for as long as it takes.

    ``on_safe(batch)`` is called in the thread for each batch that has been seen in the bucket,
    with its manifest line. ``sparing``: nothing is deleted on its word, so that a batch of an
    earlier session need not be looked at closely. ``on_note(text)`` is called once for what the
    credentials do not allow, which keeps files here. The numbers may be read from any thread.
    """

    def __init__(
        self,
        folder: Path,
        spec: S3Spec,
        run_id: str,
        *,
        credentials: Callable[[], Mapping[str, str]],
        on_safe: Callable[[Batch], None],
        on_note: Callable[[str], None] = lambda text: None,
        sparing: bool = True,
    ) -> None:
        self._folder = folder
        self._spec = spec
        self._run_id = run_id
        self._credentials = credentials
        self._on_safe = on_safe
        self._on_note = on_note
        self._sparing = sparing
        self._queue: deque[Batch] = deque()
        self._verify: dict[str, Batch] = {}
        self._wake = threading.Event()
        self._closing = False
        self._client: S3Client | None = None
        self._conditional = True
        self.files = 0
        self.bytes = 0
        self._refused = 0
        """Records of batches that are in ``lost``, as far as they are here."""
        self.error = ""
        self.note = ""
        """What the credentials do not allow, and what that means; for as long as they are used."""
        self._hidden = 0
        """Batches in the bucket that may not be looked at."""
        self.lost: list[str] = []
        """Batches that this process cannot get into the bucket, and why."""
        self._thread = threading.Thread(target=self._main, name="upload", daemon=True)

    def start(self, batches: Iterable[Batch]) -> None:
        """Begin with the batches of earlier sessions: what is missing is uploaded again."""
        for batch in batches:
            if batch.state == "sealed":
                self._queue.append(batch)
            else:
                self._verify[batch.name] = batch
                self.files += 1
                self.bytes += batch.bytes
        self._thread.start()

    def offer(self, batch: Batch) -> None:
        """A batch has just been sealed."""
        self._queue.append(batch)
        self._wake.set()

    @property
    def records_waiting(self) -> int:
        """Records of sealed batches that are not in the bucket (yet)."""
        return self._refused + sum(batch.records for batch in self._queue.copy())

    @property
    def done(self) -> bool:
        """Everything offered so far is in the bucket (or will never be: see ``lost``)."""
        return not self._queue and not self._verify

    def close(self) -> None:
        """Stop after the request that is under way."""
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(15.0)

    def _main(self) -> None:
        pause = FIRST_PAUSE_S
        while not self._closing:
            if self.done:
                self._wake.wait()
                self._wake.clear()
                continue
            try:
                if self._verify:
                    self._check()
                else:
                    self._upload(self._queue[0])
                    self._queue.popleft()
            except LostError as error:
                self._lose(self._queue.popleft(), str(error))
            except Exception as error:  # botocore raises much more than its own classes
                self.error = explain(error, self._spec)
                self._client = None  # credentials and endpoint are read again
                self._wake.wait(pause * random.uniform(0.7, 1.3))
                self._wake.clear()
                pause = min(pause * 2, LONGEST_PAUSE_S)
            else:
                pause = FIRST_PAUSE_S
                if not self.lost:
                    self.error = ""

    def _lose(self, batch: Batch, why: str) -> None:
        """Tell of it and go on with the others."""
        self.error = why
        self.lost.append(why)
        self._refused += batch.records

    def _s3(self) -> S3Client:
        if self._client is None:
            self._client = connect(self._spec, self._credentials())
        return self._client

    def _key(self, batch: Batch) -> str:
        return self._spec.prefix + batch.name

    def _check(self) -> None:
        """Compare the bucket with what was uploaded before.

        The listing tells names, sizes and ETags. Where an ETag is another one, or the local file
        is to be deleted, the object itself is asked for its checksum.
        """
        try:
            found = self._listing()
        except Exception as error:
            if code_of(error) not in _DENIED:
                raise
            count = len(self._verify)
            self._verify.clear()  # credentials that may only write: the manifest has to do
            self._remark(
                f"the bucket may not be listed (s3:ListBucket is missing): {count} batches of "
                "earlier sessions are not compared with it, and their files here are kept"
            )
            return
        for name, batch in list(self._verify.items()):
            if self._closing:
                return
            self._compare(batch, *found.get(self._key(batch), (-1, "")))
            del self._verify[name]
        if self._hidden:
            self._remark(
                f"{self._hidden} uploaded batches may not be looked at (s3:GetObject is missing): "
                "their files here are kept"
            )

    def _listing(self) -> dict[str, tuple[int, str]]:
        """Size and ETag of all that stands under the prefix, by key."""
        found: dict[str, tuple[int, str]] = {}
        pages = self._s3().get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=self._spec.bucket, Prefix=self._spec.prefix):
            for item in page.get("Contents", ()):
                found[item["Key"]] = (item["Size"], item.get("ETag", "").strip('"'))
        return found

    def _compare(self, batch: Batch, size: int, etag: str) -> None:
        """A batch that was uploaded before, with what the listing says of it; ``size`` is -1 where
        it is not there."""
        here = (self._folder / batch.name).exists()
        same = size == batch.bytes and etag == (batch.etag or "")
        if size >= 0 and (not same or (here and not self._sparing)):
            try:
                same = bool(self._there(batch))
            except HiddenError as error:
                if size == batch.bytes:  # nothing is deleted for it
                    self._hidden += 1
                    return
                self._uncount(batch)
                self._lose(batch, f"{error} (there it has {size:,} bytes, here {batch.bytes:,})")
                return
            except LostError as error:
                self._uncount(batch)
                self._lose(batch, str(error))
                return
        if same:
            self._on_safe(batch)
            return
        self._uncount(batch)
        if here:
            self._queue.append(batch)
        else:
            self.lost.append(f"{batch.name}: no longer in the bucket, and not here")
            self.error = self.lost[-1]

    def _remark(self, text: str) -> None:
        """Tell what the credentials do not allow, once."""
        text = f"s3://{self._spec.bucket}/{self._spec.prefix}: {text}"
        if text != self.note:
            self.note = text
            self._on_note(text)

    def _uncount(self, batch: Batch) -> None:
        self.files -= 1
        self.bytes -= batch.bytes

    def _upload(self, batch: Batch) -> None:
        try:
            file = (self._folder / batch.name).open("rb")
        except OSError as error:
            raise _unreadable(batch, error) from error
        with file:
            digest = hashlib.sha256()
            try:
                while block := file.read(1 << 20):
                    digest.update(block)
                file.seek(0)
            except OSError as error:
                raise _unreadable(batch, error) from error
            if digest.hexdigest() != batch.sha256:
                raise LostError(
                    f"{batch.name}: not the bytes its manifest line says: put the right file back"
                )
            checksum = base64.b64encode(digest.digest()).decode()
            if not self._conditional and (there := self._there(batch)):
                self._record(batch, there, checksum)
                return
            try:
                etag = self._put(batch, file, checksum)
            except Exception as error:
                code = code_of(error)
                if code in ("NotImplemented", "501") and self._conditional:
                    self._conditional = False  # an S3 that knows no If-None-Match: look first
                    self._upload(batch)
                    return
                if code not in ("PreconditionFailed", "412"):
                    raise
                etag = self._there(batch)
        self._record(batch, etag, checksum)

    def _put(self, batch: Batch, file: BinaryIO, checksum: str) -> str:
        extra: dict[str, Any] = {"IfNoneMatch": "*"} if self._conditional else {}
        answer = self._s3().put_object(
            Bucket=self._spec.bucket,
            Key=self._key(batch),
            Body=file,
            ContentType="application/x-ndjson",
            ChecksumAlgorithm="SHA256",
            ChecksumSHA256=checksum,
            Metadata={"run-id": self._run_id, "sha256": batch.sha256},
            **extra,
        )
        return answer["ETag"]

    def _there(self, batch: Batch) -> str:
        """The ETag of this very batch in the bucket; empty where nothing stands there."""
        try:
            head = self._s3().head_object(
                Bucket=self._spec.bucket, Key=self._key(batch), ChecksumMode="ENABLED"
            )
        except Exception as error:
            if code_of(error) in ("404", "NoSuchKey", "NotFound"):
                return ""
            if code_of(error) in _DENIED:
                raise HiddenError(
                    f"s3://{self._spec.bucket}/{self._key(batch)}: may not be looked at "
                    "(s3:GetObject is missing, or s3:ListBucket where it is not there), so that "
                    "nobody knows whether it is this batch: its file here is kept; the next start "
                    "looks again"
                ) from None
            raise
        said = head.get("Metadata", {})
        same = said.get("sha256") == batch.sha256 and head["ContentLength"] == batch.bytes
        if same and head.get("ChecksumSHA256") in (None, _base64(batch.sha256)):
            return head["ETag"]
        other = said.get("run-id")
        whose = "another run's" if other and other != self._run_id else "a different"
        raise LostError(
            f"s3://{self._spec.bucket}/{self._key(batch)} is {whose} file: nothing was "
            "overwritten; choose another prefix, or move it away"
        )

    def _record(self, batch: Batch, etag: str, checksum: str) -> None:
        self.files += 1
        self.bytes += batch.bytes
        self._on_safe(
            msgspec.structs.replace(
                batch,
                state="uploaded",
                bucket=self._spec.bucket,
                key=self._key(batch),
                etag=etag.strip('"'),
                checksum=f"sha256:{checksum}",
                uploaded_at=now(),
            )
        )


def _unreadable(batch: Batch, error: OSError) -> Exception:
    if error.errno in _PASSES:
        return error
    return LostError(
        f"{batch.name}: cannot be read ({error.strerror}), so that it is not uploaded: put it "
        "back; the next start tries again"
    )


def _base64(sha256: str) -> str:
    return base64.b64encode(bytes.fromhex(sha256)).decode()


def connect(spec: S3Spec, credentials: Mapping[str, str]) -> S3Client:
    """A client of its own session, so that no other thread shares it."""
    import boto3
    from botocore.config import Config

    session = boto3.session.Session(
        aws_access_key_id=credentials.get("AWS_ACCESS_KEY_ID"),
        aws_secret_access_key=credentials.get("AWS_SECRET_ACCESS_KEY"),
        aws_session_token=credentials.get("AWS_SESSION_TOKEN"),
        region_name=credentials.get("AWS_REGION") or credentials.get("AWS_DEFAULT_REGION"),
    )
    endpoint = spec.endpoint_url or credentials.get("AWS_ENDPOINT_URL") or None
    config = Config(
        connect_timeout=10,
        read_timeout=60,
        retries={"mode": "standard", "max_attempts": 3},
        # Elsewhere than at AWS a checksum in a trailer is refused or even stored with the
        # object (boto3#4409, #4435); the one sent here is a plain header.
        request_checksum_calculation="when_required" if endpoint else "when_supported",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path" if endpoint else "auto"},
    )
    region = session.region_name or ("us-east-1" if endpoint else None)
    client: S3Client = session.client(
        "s3", endpoint_url=endpoint, region_name=region, config=config
    )
    return client


def code_of(error: BaseException) -> str:
    """S3's error code, or empty."""
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return ""
    return str(response.get("Error", {}).get("Code", ""))


def explain(error: BaseException, spec: S3Spec) -> str:
    """What went wrong and what to do, in one line."""
    where = f"s3://{spec.bucket}/{spec.prefix}"
    name = type(error).__name__
    if name in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"):
        why = "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    elif name in ("EndpointConnectionError", "ConnectTimeoutError", "ConnectionClosedError"):
        why = f"{spec.endpoint_url or 'S3'} cannot be reached"
    elif name == "ModuleNotFoundError":
        why = "boto3 is not installed in this Python"
    else:
        why = _NAMED.get(code_of(error)) or str(error)
    return f"{where}: {why}"[:500]
