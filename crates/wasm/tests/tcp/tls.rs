//! TLS that the host adds to connections of a guest, with real servers: what the guest sees of it, and which servers it refuses.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hostler_handler::Outcome;
use hostler_types::tcp_grant::{TcpGrant, Tls, TlsStart};
use hostler_wasm::Grants;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned, SupportedProtocolVersion};
use tempfile::TempDir;
use tracing_subscriber::fmt::MakeWriter;

use super::postgres::Postgres;
use super::{PATIENCE, POURED, ask, done, fails_with_held_output, grants, handler, refused, serve, silent};

/// Makes an authority (`ca.pem`), another one (`other.pem`), and the certificate of a server (`server.crt`, `server.key`) with the
/// names `$1`.
const CERTIFICATES: &str = r#"
    set -e; cd "$0"
    key='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes'
    for authority in ca other; do
        openssl req -x509 $key -days 2 -subj /CN=$authority -addext basicConstraints=critical,CA:TRUE -keyout $authority.key -out $authority.pem
    done
    openssl req $key -subj /CN=server -keyout server.key -out server.csr
    echo "subjectAltName=$1" >server.ext
    openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile server.ext -out server.crt
"#;

/// Folder with the certificates of a server.
struct Certificates(TempDir);

impl Certificates {
    fn of(names: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        make_certificates(folder.path(), names);
        Self(folder)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn server(&self, versions: &[&'static SupportedProtocolVersion]) -> Arc<ServerConfig> {
        let chain = CertificateDer::pem_file_iter(self.file("server.crt")).unwrap().map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_file(self.file("server.key")).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
        let config = config.with_protocol_versions(versions).unwrap().with_no_client_auth();
        Arc::new(config.with_single_cert(chain, key).unwrap())
    }
}

fn make_certificates(folder: &Path, names: &str) {
    let made = Command::new("/bin/sh").args(["-c", CERTIFICATES]).arg(folder).arg(names).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// All that the host has logged in this process.
#[derive(Clone, Copy)]
struct Log;

static LOGGED: Mutex<Vec<u8>> = Mutex::new(Vec::new());

static LOG: LazyLock<Log> = LazyLock::new(|| {
    tracing_subscriber::fmt().with_writer(Log).with_ansi(false).init();
    Log
});

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOGGED.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        Self
    }
}

impl Log {
    /// Returns the lines about a server.
    fn about(self, server: &str) -> Vec<String> {
        let text = String::from_utf8(LOGGED.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| line.contains(&format!("server=\"{server}\""))).map(str::to_owned).collect()
    }
}

fn granted(server: &str, start: TlsStart, ca: PathBuf) -> Grants {
    let tls = Some(Tls { start, ca: Some(ca) });
    Grants { tcp: vec![TcpGrant { to: server.parse().unwrap(), tls }], ..grants(&[], &[]) }
}

/// Asserts that the guest gets no connection, and that the log says why in one line. Returns the line.
fn fails(grants: Grants, server: &str) -> String {
    let log = *LOG;
    refused(grants, "echo", server);
    let [line]: [String; 1] = log.about(server).try_into().unwrap();
    assert!(!line.contains("PRIVATE"), "{line}");
    line
}

type Stream = StreamOwned<ServerConnection, TcpStream>;

/// A server with TLS on loopback that does this with its first connection, before the handshake.
fn serve_tls<T: Send + 'static>(
    config: Arc<ServerConfig>,
    on: impl FnOnce(Stream) -> T + Send + 'static,
) -> (SocketAddr, JoinHandle<T>) {
    serve(move |stream| on(StreamOwned::new(ServerConnection::new(config).unwrap(), stream)))
}

/// Sends back what it has received once the client has ended its output. Returns the name that the client has asked for.
fn echo(mut stream: Stream) -> Option<String> {
    let mut said = Vec::new();
    stream.read_to_end(&mut said).unwrap();
    stream.write_all(&said).unwrap();
    stream.conn.send_close_notify();
    stream.flush().unwrap();
    stream.conn.server_name().map(str::to_owned)
}

#[test]
fn a_guest_talks_through_tls_to_a_granted_name() {
    let certificates = Certificates::of("DNS:localhost");
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let (address, server) = serve_tls(certificates.server(&[version]), echo);
        let name = format!("localhost:{}", address.port());
        let grants = granted(&name, TlsStart::Direct, certificates.file("ca.pem"));
        assert_eq!(done(grants, "echo", &name), Outcome::Reply(b"hello".to_vec()));
        assert_eq!(server.join().unwrap().as_deref(), Some("localhost"));
    }
}

#[test]
fn a_guest_talks_through_tls_to_a_granted_address() {
    let certificates = Certificates::of("IP:127.0.0.1");
    let (address, server) = serve_tls(certificates.server(rustls::ALL_VERSIONS), echo);
    let grants = granted(&address.to_string(), TlsStart::Direct, certificates.file("ca.pem"));
    assert_eq!(done(grants, "echo", &address.to_string()), Outcome::Reply(b"hello".to_vec()));
    assert_eq!(server.join().unwrap(), None);
}

/// A server that expects to get nothing. Returns the error of its handshake.
fn spurned(mut stream: Stream) -> String {
    stream.read(&mut [0]).unwrap_err().to_string()
}

#[test]
fn a_certificate_for_another_name_is_refused() {
    let certificates = Certificates::of("DNS:db.example,IP:127.0.0.2");
    for host in ["localhost", "127.0.0.1"] {
        let (address, server) = serve_tls(certificates.server(rustls::ALL_VERSIONS), spurned);
        let name = format!("{host}:{}", address.port());
        let line = fails(granted(&name, TlsStart::Direct, certificates.file("ca.pem")), &name);
        assert!(line.contains("not valid for name") && line.contains("cure=\"grant a name"), "{line}");
        server.join().unwrap();
    }
}

#[test]
fn a_certificate_of_an_unknown_authority_is_refused() {
    let certificates = Certificates::of("DNS:localhost");
    let (address, server) = serve_tls(certificates.server(rustls::ALL_VERSIONS), spurned);
    let name = format!("localhost:{}", address.port());
    let line = fails(granted(&name, TlsStart::Direct, certificates.file("other.pem")), &name);
    assert!(line.contains("UnknownIssuer") && line.contains("cure=\"name the file"), "{line}");
    assert!(server.join().unwrap().contains("UnknownCA"), "the server gets to know why");
}

#[test]
fn a_server_without_tls_gets_nothing_of_the_guest() {
    let certificates = Certificates::of("DNS:localhost");
    for start in [TlsStart::Direct, TlsStart::Postgres] {
        let (address, server) = serve(|mut stream: TcpStream| {
            stream.write_all(b"220 ready\r\n").unwrap();
            let mut said = Vec::new();
            let _ = stream.read_to_end(&mut said);
            said
        });
        let name = format!("localhost:{}", address.port());
        let line = fails(granted(&name, start, certificates.file("ca.pem")), &name);
        assert!(line.contains("cure="), "{line}");
        let said = server.join().unwrap();
        assert!(!said.is_empty() && !said.windows(5).any(|part| part == b"hello"), "{said:?}");
    }
}

#[test]
fn a_server_that_does_not_answer_ends_with_the_processing_timeout() {
    let certificates = Certificates::of("DNS:localhost");
    let (_listener, address) = silent();
    let handler = handler(granted(&address, TlsStart::Direct, certificates.file("ca.pem")), 1);
    assert_eq!(ask(&handler, "connect", &address, Duration::from_millis(500)), None);
}

#[test]
fn a_stream_that_is_cut_is_no_stream_that_has_ended() {
    let certificates = Certificates::of("IP:127.0.0.1");
    let (address, server) = serve_tls(certificates.server(rustls::ALL_VERSIONS), |mut stream| {
        stream.read_to_end(&mut Vec::new()).unwrap();
        stream.write_all(b"hel").unwrap();
    });
    refused(granted(&address.to_string(), TlsStart::Direct, certificates.file("ca.pem")), "echo", &address.to_string());
    server.join().unwrap();
}

/// Lets a guest leave output behind that the host must hold: after `first` bytes, nobody reads it until `leaving` has ended, which
/// runs once the guest is about to return. Returns the outcome, and the number of bytes that arrived then.
fn left(reads: bool, first: usize, leaving: impl FnOnce(&JoinHandle<Option<Outcome>>)) -> (Option<Outcome>, u64) {
    let certificates = Certificates::of("IP:127.0.0.1");
    let (sender, go) = mpsc::channel();
    let (address, server) = serve_tls(certificates.server(rustls::ALL_VERSIONS), move |mut stream| {
        stream.conn.complete_io(&mut stream.sock).unwrap();
        stream.read_exact(&mut vec![0; first]).unwrap();
        go.recv().unwrap();
        // The guest's end is no error here: the host has closed the connection with the sandbox.
        let mut count = Count(0);
        if reads {
            let _ = io::copy(&mut stream, &mut count);
        }
        count.0
    });
    let (told, tells) = serve(drop);
    let mut grants = granted(&address.to_string(), TlsStart::Direct, certificates.file("ca.pem"));
    grants.tcp.extend(super::grants(&[&told.to_string()], &[]).tcp);
    let handler = handler(grants, 1);
    let call = thread::spawn(move || ask(&handler, "leave", &format!("{address} {told}"), PATIENCE));
    tells.join().unwrap();
    leaving(&call);
    sender.send(()).unwrap();
    (call.join().unwrap(), server.join().unwrap())
}

/// Counts what is written to it.
struct Count(u64);

impl io::Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn all_that_a_guest_wrote_through_tls_is_sent_before_its_message_counts() {
    let (outcome, read) = left(true, 0, |call| {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(500) {
            thread::park_timeout(Duration::from_millis(50));
            assert!(!call.is_finished(), "the message counts although the host holds output");
        }
    });
    let Some(Outcome::Reply(taken)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(read.to_string(), String::from_utf8(taken).unwrap());
}

#[test]
fn output_through_tls_that_no_one_takes_fails_its_message() {
    fails_with_held_output(|first| left(false, first, |_| {}).0);
}

#[test]
fn large_output_arrives_whole() {
    let certificates = Certificates::of("IP:127.0.0.1");
    let (address, server) = serve_tls(certificates.server(rustls::ALL_VERSIONS), |mut stream| {
        let mut said = Vec::new();
        stream.read_to_end(&mut said).unwrap();
        said
    });
    let grants = granted(&address.to_string(), TlsStart::Direct, certificates.file("ca.pem"));
    assert_eq!(done(grants, "pour", &address.to_string()), Outcome::Ack);
    let said = server.join().unwrap();
    assert!(said.len() == POURED && said.iter().all(|byte| *byte == b'x'));
}

/// A PostgreSQL server that takes only connections with TLS, and the file of its authority.
fn postgres_with_tls(names: &str) -> (Postgres, PathBuf) {
    let mut server = Postgres::start();
    let data = server.data();
    make_certificates(&data, names);
    let script = r#"
        set -e; cd "$0"
        chmod 600 server.key; chown --reference=PG_VERSION server.key server.crt
        echo 'ssl = on' >>postgresql.conf
        echo 'hostssl all all 127.0.0.1/32 trust' >pg_hba.conf
    "#;
    assert!(Command::new("/bin/sh").args(["-c", script]).arg(&data).status().unwrap().success());
    server.stop();
    server.restart();
    (server, data.join("ca.pem"))
}

#[test]
fn a_guest_uses_postgresql_through_tls() {
    let (server, ca) = postgres_with_tls("DNS:localhost");
    let name = format!("localhost:{}", server.port());
    let grants = granted(&name, TlsStart::Postgres, ca);
    assert_eq!(done(grants, "postgres", &name), Outcome::Reply(b"42 1000000".to_vec()));
    refused(super::grants(&[&name], &[]), "postgres", &name);
}

#[test]
fn postgresql_with_another_name_is_refused() {
    let (server, ca) = postgres_with_tls("DNS:db.example");
    let name = format!("localhost:{}", server.port());
    let line = fails(granted(&name, TlsStart::Postgres, ca), &name);
    assert!(line.contains("not valid for name"), "{line}");
}

#[test]
fn postgresql_without_tls_is_refused() {
    let server = Postgres::start();
    let certificates = Certificates::of("DNS:localhost");
    let name = format!("localhost:{}", server.port());
    let line = fails(granted(&name, TlsStart::Postgres, certificates.file("ca.pem")), &name);
    assert!(line.contains("the server has no TLS") && line.contains("ssl = on"), "{line}");
}

#[test]
fn a_grant_that_names_no_authorities_is_refused_before_the_first_message() {
    let grants = granted("db.example:1", TlsStart::Direct, "/nowhere/ca.pem".into());
    let error = super::loaded(grants, 1, false).map(drop).unwrap_err().to_string();
    assert!(error.contains("/nowhere/ca.pem") && error.contains("cure: name a PEM file"), "{error}");
}
