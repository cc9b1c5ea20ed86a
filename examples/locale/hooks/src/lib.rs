//! Hooks in a component of their own, before and after a handler of any kind. They run in an instance of their own, so what
//! they activate is a file in a granted folder, named by the message.

use std::fs;
use std::path::Path;
use std::time::Duration;

use hostler_guest::{Failure, Message, Outcome, Report, message_end, message_start, processing_timeout};
use receipt::{Locale, late};

const FOLDER: &str = "/active";

#[message_start]
fn start(message: Message) -> Result<(), Failure> {
    let locale = Locale::of(message.attribute("locale"));
    activate(Path::new(FOLDER), &message.id, locale)?;
    eprintln!("locale {locale}");
    Ok(())
}

/// Called after a trap as well, since the handler's sandbox is another; at the processing timeout it is not.
#[message_end]
fn end(report: Report) {
    deactivate(Path::new(FOLDER), &report.message_id);
    eprintln!("locale off after {}", report.outcome);
}

#[processing_timeout]
fn timeout(message: Message, elapsed: Duration) -> Outcome {
    deactivate(Path::new(FOLDER), &message.id);
    late(&message, elapsed)
}

/// One file per message, so that messages which are processed at the same time do not meet.
fn activate(folder: &Path, id: &str, locale: Locale) -> Result<(), Failure> {
    fs::write(folder.join(id), locale.to_string())
        .map_err(|error| Failure::error(format!("the locale cannot be activated: {error}")))
}

fn deactivate(folder: &Path, id: &str) {
    if let Err(error) = fs::remove_file(folder.join(id)) {
        eprintln!("the locale cannot be deactivated: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locale_is_active_from_start_to_end() {
        let folder = std::env::temp_dir().join(format!("locale-hooks-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        activate(&folder, "a", Locale::German).unwrap();
        activate(&folder, "b", Locale::French).unwrap();
        let active = |id: &str| fs::read_to_string(folder.join(id)).ok();
        assert_eq!(["a", "b"].map(active), [Some("de".to_owned()), Some("fr".to_owned())]);
        deactivate(&folder, "a");
        assert_eq!(["a", "b"].map(active), [None, Some("fr".to_owned())]);
        fs::remove_dir_all(&folder).unwrap();
        assert!(activate(&folder, "a", Locale::German).is_err());
    }
}
