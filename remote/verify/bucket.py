"""The uploaded batches: fetched whole, and held against their digests."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from remote.verify.report import CannotVerifyError, Report, StorageError


@dataclass(frozen=True)
class S3Source:
    """Where uploads are looked for; credentials come from the environment, as boto3 does it."""

    endpoint_url: str = ""


def check_bucket(manifest: dict[str, dict[str, Any]], source: S3Source, report: Report) -> None:
    """Fetch what the manifest calls uploaded. Raises CannotVerifyError without credentials,
    StorageError where the bucket cannot be reached."""
    import boto3
    from botocore import exceptions as errors

    client = boto3.session.Session().client("s3", endpoint_url=source.endpoint_url or None)
    report.in_bucket = 0
    for name, entry in sorted(manifest.items()):
        if entry.get("state") not in ("uploaded", "local_deleted"):
            continue
        report.uploaded += 1
        place = f"s3://{entry.get('bucket')}/{entry.get('key')}"
        try:
            body = client.get_object(Bucket=entry["bucket"], Key=entry["key"])["Body"]
            digest = hashlib.sha256()
            for block in body.iter_chunks(1 << 20):
                digest.update(block)
        except errors.NoCredentialsError:
            raise CannotVerifyError(
                "S3: no credentials here: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            ) from None
        except (errors.ConnectionError, errors.HTTPClientError) as error:
            raise StorageError(f"S3: {error}") from None
        except (errors.ClientError, errors.BotoCoreError, KeyError) as error:
            report.violation("not in the bucket", f"{name}: {place}: {error}")
            continue
        if digest.hexdigest() != entry.get("sha256"):
            report.violation("other bytes in the bucket", f"{name}: {place} holds other bytes")
        else:
            report.in_bucket += 1
