"""Certificates for tests, made by the `openssl` program: an authority, and whom it vouches for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


class Authority:
    """A certificate authority in a folder of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder / name
        self._folder.mkdir()
        self._key, self.certificate = self._folder / "ca.key", self._folder / "ca.crt"
        _openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", self._key, "-out", self.certificate, "-days", "2", "-subj", f"/CN=authority {name}",
            # RFC 5280 asks for it, and so does Python from 3.13 on.
            "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        )  # fmt: skip

    def vouch(self, name: str, *, names: str = "") -> tuple[Path, Path]:
        """Return the files of a certificate for `names` (as in `IP:127.0.0.1,DNS:localhost`) and its key."""
        key, request, certificate = (self._folder / f"{name}.{end}" for end in ("key", "csr", "crt"))
        extensions = self._folder / f"{name}.ext"
        extensions.write_text(
            "authorityKeyIdentifier=keyid\n" + (f"subjectAltName={names}\n" if names else "")
        )
        _openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", key, "-out", request, "-subj", f"/CN={name}",
        )  # fmt: skip
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial",
            "-out", certificate, "-days", "2", "-extfile", extensions,
        )  # fmt: skip
        return certificate, key


def can_make_certificates() -> bool:
    return shutil.which("openssl") is not None


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
