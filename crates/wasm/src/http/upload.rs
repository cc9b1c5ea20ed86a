//! The bodies of HTTP requests from guests. A body is sent to its end only if the guest finished it. Otherwise, the
//! body ends with an error.
//!
//! Without this module, wasmtime-wasi-http would complete the body even if the guest was stopped or trapped. The server
//! would then accept a partial upload as complete.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;
use wasmtime_wasi_http::{Error, WasiBody};

/// Maps each request body of one sandbox, by the guest's handle, to a flag. The flag becomes `true` when the guest has
/// finished the body.
///
/// An entry remains until the guest's table reuses the handle for another body, so there are never more entries than
/// handles.
#[derive(Default)]
pub(crate) struct Uploads(BTreeMap<u32, Arc<AtomicBool>>);

impl Uploads {
    /// Wraps the body that the guest knows as `handle`. The wrapped body completes only after it is marked as finished
    /// by [`Self::finish`].
    pub(super) fn guard(&mut self, handle: u32, headers: &HeaderMap, body: WasiBody) -> WasiBody {
        let finished = Arc::<AtomicBool>::default();
        self.0.insert(handle, Arc::clone(&finished));
        Upload { body, finished, left: length(headers), held: None }.boxed_unsync()
    }

    /// Marks a body as finished. If `finished` is `false`, removes the mark. The caller must mark the body before the
    /// HTTP client can read the end of the body. If finishing the body then fails, the caller must remove the mark.
    pub(super) fn finish(&self, handle: u32, finished: bool) {
        if let Some(mark) = self.0.get(&handle) {
            mark.store(finished, Ordering::Release);
        }
    }
}

/// Returns the body length that a request announces. wasmtime-wasi-http has already refused a length that is not a
/// number.
fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// A body that completes only if the guest finished it.
struct Upload {
    body: WasiBody,
    finished: Arc<AtomicBool>,
    /// Number of announced bytes that have not arrived yet. `None`: the request announces no length.
    left: Option<u64>,
    /// The frame that completes the announced length. A server accepts the body as complete when this frame arrives.
    /// The frame is therefore held until the guest finishes the body.
    held: Option<Frame<Bytes>>,
}

impl Upload {
    /// Returns the frame to send. If the frame completes the announced length, holds it back. `None`: there is nothing
    /// to send now.
    fn pass(&mut self, frame: Frame<Bytes>) -> Option<Frame<Bytes>> {
        let (Some(left), Some(data)) = (&mut self.left, frame.data_ref()) else { return Some(frame) };
        if *left == 0 {
            // The body is longer than announced. The guest cannot finish a body that is too long, so the rest is
            // dropped.
            return None;
        }
        *left = left.saturating_sub(data.len() as u64);
        if *left == 0 {
            self.held = Some(frame);
            return None;
        }
        Some(frame)
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        loop {
            let Poll::Ready(next) = Pin::new(&mut self.body).poll_frame(context) else { return Poll::Pending };
            match next {
                Some(Ok(frame)) if frame.is_data() => {
                    if let Some(frame) = self.pass(frame) {
                        return Poll::Ready(Some(Ok(frame)));
                    }
                }
                Some(Ok(trailers)) => {
                    // Trailers arrive when the guest finishes the body, and are the last frame.
                    let next = self.held.replace(trailers);
                    if next.is_some() {
                        return Poll::Ready(next.map(Ok));
                    }
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None if self.finished.load(Ordering::Acquire) => return Poll::Ready(self.held.take().map(Ok)),
                None => return Poll::Ready(Some(Err(unfinished()))),
            }
        }
    }
}

fn unfinished() -> Error {
    Error::InternalError(Some("the guest ended before it finished the body of its request".into()))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    /// A body that yields the given frames.
    struct Frames(std::vec::IntoIter<Result<Frame<Bytes>, Error>>);

    impl Body for Frames {
        type Data = Bytes;
        type Error = Error;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
            Poll::Ready(self.0.next())
        }
    }

    fn data(text: &'static str) -> Result<Frame<Bytes>, Error> {
        Ok(Frame::data(Bytes::from_static(text.as_bytes())))
    }

    fn trailers() -> Result<Frame<Bytes>, Error> {
        Ok(Frame::trailers(HeaderMap::from_iter([(CONTENT_LENGTH, HeaderValue::from(1))])))
    }

    /// Returns the frames that are sent, with `+` for trailers, and `true` if the body was sent to its end.
    async fn sent<const N: usize>(
        length: Option<u64>,
        finished: bool,
        frames: [Result<Frame<Bytes>, Error>; N],
    ) -> (String, bool) {
        let mut uploads = Uploads::default();
        let headers = HeaderMap::from_iter(length.map(|length| (CONTENT_LENGTH, HeaderValue::from(length))));
        let frames = Frames(Vec::from(frames).into_iter());
        let mut body = uploads.guard(7, &headers, frames.boxed_unsync());
        uploads.finish(7, finished);
        let mut text = String::new();
        loop {
            match body.frame().await {
                Some(Ok(frame)) => text += frame.data_ref().map_or("+", |data| std::str::from_utf8(data).unwrap()),
                Some(Err(_)) => return (text, false),
                None => return (text, true),
            }
        }
    }

    #[tokio::test]
    async fn only_a_finished_body_ends_well() {
        let cases = [
            (sent(None, true, [data("a"), data("b")]).await, "ab", true),
            (sent(None, true, [data("a"), trailers()]).await, "a+", true),
            (sent(None, true, []).await, "", true),
            (sent(None, false, [data("a"), data("b")]).await, "ab", false),
            (sent(None, false, []).await, "", false),
            (sent(None, true, [data("a"), Err(Error::HttpProtocolError)]).await, "a", false),
            (sent(Some(2), true, [data("a"), data("b")]).await, "ab", true),
            (sent(Some(2), true, [data("a"), data("b"), trailers()]).await, "ab+", true),
            (sent(Some(2), false, [data("a")]).await, "a", false),
            // All announced bytes have arrived, but the guest has not finished the body.
            (sent(Some(2), false, [data("a"), data("b")]).await, "a", false),
            (sent(Some(2), true, [data("a"), data("b"), data("c"), Err(Error::HttpProtocolError)]).await, "a", false),
            (sent(Some(0), true, []).await, "", true),
        ];
        for (number, ((text, well), expected, ends_well)) in cases.into_iter().enumerate() {
            assert_eq!((&*text, well), (expected, ends_well), "case {number}");
        }
    }

    #[tokio::test]
    async fn a_handle_that_is_given_out_again_marks_its_own_body() {
        let mut uploads = Uploads::default();
        let none = HeaderMap::new();
        let mut first = uploads.guard(7, &none, Frames(Vec::new().into_iter()).boxed_unsync());
        let mut second = uploads.guard(7, &none, Frames(Vec::new().into_iter()).boxed_unsync());
        uploads.finish(7, true);
        assert!(first.frame().await.unwrap().is_err());
        assert!(second.frame().await.is_none());
    }
}
