//! PostgreSQL by `tokio-postgres`, over a stream of the standard library, without a runtime.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::thread::sleep;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::{Config, NoTls};

/// Asks the server at `host:port` for two things. Returns its answers.
pub fn query(server: &str) -> Result<String, Box<dyn std::error::Error>> {
    let stream = TcpStream::connect(server)?;
    stream.set_nonblocking(true)?;
    let mut config = Config::new();
    config.user("postgres").dbname("postgres");
    let (client, connection) = run(config.connect_raw(Polled(stream), NoTls), None)?;
    let mut connection: Background = Box::pin(async move { _ = connection.await });
    let asked = async {
        client.batch_execute("CREATE TABLE IF NOT EXISTS asked (number int)").await?;
        client.execute("INSERT INTO asked VALUES ($1)", &[&6]).await?;
        let row = client.query_one("SELECT number * $1, length(repeat('x', 1000000)) FROM asked", &[&7]).await?;
        Ok::<_, tokio_postgres::Error>(format!("{} {}", row.get::<_, i32>(0), row.get::<_, i32>(1)))
    };
    Ok(run(asked, Some(&mut connection))?)
}

type Background = Pin<Box<dyn Future<Output = ()>>>;

/// Runs a future to its end, and another one beside it.
fn run<T>(future: impl Future<Output = T>, mut beside: Option<&mut Background>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        if let Some(beside) = &mut beside {
            _ = beside.as_mut().poll(&mut context);
        }
        sleep(Duration::from_millis(1));
    }
}

/// A stream that is asked again and again.
struct Polled(TcpStream);

fn polled<T>(result: std::io::Result<T>) -> Poll<std::io::Result<T>> {
    match result {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Poll::Pending,
        result => Poll::Ready(result),
    }
}

impl AsyncRead for Polled {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        let read = self.0.read(buffer.initialize_unfilled());
        polled(read.map(|length| buffer.advance(length)))
    }
}

impl AsyncWrite for Polled {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        polled(self.0.write(bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        polled(self.0.flush())
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        polled(self.0.shutdown(std::net::Shutdown::Write))
    }
}
