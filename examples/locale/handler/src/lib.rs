//! A handler of receipts whose hooks are a component apart: what they activate is a file that is named by the message.

use std::fs;
use std::path::{Path, PathBuf};

use hostler_guest::{Failure, Message, Outcome, handler};
use receipt::{Locale, receipt};

#[handler]
fn handle(message: Message) -> Result<Outcome, Failure> {
    receipt_in(Path::new("/active"), &message)
}

fn receipt_in(folder: &Path, message: &Message) -> Result<Outcome, Failure> {
    let file: PathBuf = folder.join(&message.id);
    let tag = fs::read_to_string(&file)
        .map_err(|error| Failure::error(format!("no locale is active, {}: {error}", file.display())))?;
    receipt(message, |name, cents| Locale::of(Some(&tag)).line(name, cents))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_locale_is_what_the_file_says() {
        let folder = std::env::temp_dir().join(format!("locale-handler-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let message = Message::test(r#"{"name": "Ada", "cents": 150}"#);
        fs::write(folder.join(&message.id), "de").unwrap();
        let outcome = receipt_in(&folder, &message);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(outcome, Ok(Outcome::reply("Danke, Ada: 1,50")));
        let Err(Failure::Error(reason)) = receipt_in(&folder, &message) else { panic!() };
        assert!(reason.starts_with("no locale is active, "), "{reason}");
    }
}
