//! Certificates of servers for tests.

use std::path::Path;
use std::process::Command;

/// Writes `key.pem` and `cert.pem` into the folder: a certificate for the loopback address that is its own authority.
pub fn self_signed(folder: &Path, name: &str) {
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]);
    openssl.args(["-subj", &format!("/CN={name}"), "-addext", "subjectAltName=IP:127.0.0.1"]);
    openssl.args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout", "key.pem", "-out", "cert.pem"]);
    let output = openssl.current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
