//! The settings of a run, from variables.

use crate::cpu::Processes;
use crate::failure::Failure;

/// The settings of a run.
pub struct Settings {
    /// `JOBS`: the service's `host:port`.
    pub host: String,
    /// `DATABASE`: the URL of its database.
    pub database: String,
    /// `HOSTLER_PID` and `POSTGRES_PID`.
    pub processes: Processes,
    /// `QUICK`: whether to run for seconds only, without bars.
    pub quick: bool,
}

impl Settings {
    /// Reads the variables.
    ///
    /// # Errors
    /// [`Failure::Usage`] if one is missing or is not a number.
    pub fn read() -> Result<Self, Failure> {
        Ok(Self {
            host: text("JOBS")?,
            database: text("DATABASE")?,
            processes: Processes { hostler: number("HOSTLER_PID")?, postgres: number("POSTGRES_PID")? },
            quick: std::env::var_os("QUICK").is_some_and(|value| !value.is_empty()),
        })
    }

    /// Reads a number from a variable. Without it: `usual`, or `quick` in a quick run.
    ///
    /// # Errors
    /// [`Failure::Usage`] if it is not a whole number above 0.
    pub fn number(&self, name: &str, usual: u64, quick: u64) -> Result<u64, Failure> {
        let given = number(name)?.unwrap_or(if self.quick { quick } else { usual });
        if given > 0 { Ok(given) } else { Err(Failure::Usage(format!("{name} must be above 0"))) }
    }
}

fn text(name: &str) -> Result<String, Failure> {
    std::env::var(name).map_err(|_| Failure::Usage(format!("{name} is not set; run benches/jobs.sh")))
}

fn number<T: std::str::FromStr>(name: &str) -> Result<Option<T>, Failure> {
    let Ok(value) = std::env::var(name) else { return Ok(None) };
    let number = value.parse().map_err(|_| Failure::Usage(format!("{name}: {value:?} is not a whole number")))?;
    Ok(Some(number))
}
