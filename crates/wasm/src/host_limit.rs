//! Finds the [host limit](Limit) that caused an error.

use std::error::Error as StdError;
use std::io;

use hostler_handler::Limit;
use rustix::io::Errno;
use wasmtime::PoolConcurrencyLimitError;

/// Returns the host limit that caused an error. `None`: the causes of the error include no host limit.
pub(crate) fn of(error: &(dyn StdError + 'static)) -> Option<Limit> {
    std::iter::successors(Some(error), |&error| error.source()).find_map(|cause| {
        if cause.is::<PoolConcurrencyLimitError>() {
            return Some(Limit::Pool);
        }
        let of_io = || cause.downcast_ref::<io::Error>().and_then(Errno::from_io_error);
        cause.downcast_ref::<Errno>().copied().or_else(of_io).and_then(Limit::of_errno)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_found_among_the_causes() {
        let of_number = |number| {
            let error = io::Error::from_raw_os_error(number);
            of(wasmtime::Error::from(error).context("a folder").as_ref())
        };
        assert_eq!(of_number(Errno::MFILE.raw_os_error()), Some(Limit::Descriptors));
        assert_eq!(of_number(Errno::NFILE.raw_os_error()), Some(Limit::Descriptors));
        assert_eq!(of_number(Errno::NOMEM.raw_os_error()), Some(Limit::Memory));
        assert_eq!(of_number(Errno::AGAIN.raw_os_error()), Some(Limit::Threads));
        assert_eq!(of_number(Errno::NOENT.raw_os_error()), None);
        assert_eq!(of(wasmtime::Error::msg("no memory").as_ref()), None);
    }
}
