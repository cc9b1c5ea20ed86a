//! Makes thumbnails: the body is an image, the reply its thumbnail. What no attempt can make one of is dead-lettered.

mod thumbnail;

use hostler_guest::{Failure, Malformed, Message, Outcome, handler};
use thumbnail::{Format, thumbnail};

/// Default width of a thumbnail, in pixels.
const WIDTH: u32 = 320;

/// The widest that a message may ask for.
const WIDEST: u32 = 2048;

#[handler]
fn handle(message: Message) -> Result<Outcome, Failure> {
    let width = message.parse("width")?.unwrap_or(WIDTH);
    if !(1..=WIDEST).contains(&width) {
        return Err(Failure::dead_letter(format!("the attribute `width` is {width}, not from 1 to {WIDEST}")));
    }
    let format = message.attribute("format").map(format).transpose()?;
    Ok(Outcome::reply(thumbnail(&message.body, width, format)?))
}

fn format(name: &str) -> Result<Format, Malformed> {
    match name {
        "jpeg" => Ok(Format::Jpeg),
        "png" => Ok(Format::Png),
        _ => Err(Malformed::new(format!("the attribute `format` is `{name}`, neither `jpeg` nor `png`"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::{ImageFormat, RgbImage};

    fn refused(name: &str, value: &str) -> String {
        match handle(Message::test(thumbnail::tests::png(RgbImage::new(4, 4))).with(name, value)) {
            Err(Failure::DeadLetter(reason)) => reason,
            other => panic!("{name} {value}: {other:?}"),
        }
    }

    #[test]
    fn the_attributes_say_how_wide_and_what_format() {
        let body = thumbnail::tests::png(RgbImage::new(1000, 500));
        let made = |message| match handle(message) {
            Ok(Outcome::Reply(body)) => {
                let image = image::load_from_memory(&body).unwrap();
                (image::guess_format(&body).unwrap(), image.width(), image.height())
            }
            other => panic!("{other:?}"),
        };
        let message = Message::test(body);
        assert_eq!(made(message.clone()), (ImageFormat::Jpeg, 320, 160));
        assert_eq!(made(message.with("width", "100").with("format", "png")), (ImageFormat::Png, 100, 50));
    }

    #[test]
    fn an_attribute_that_makes_no_sense_is_dead_lettered() {
        assert_eq!(refused("width", "0"), "the attribute `width` is 0, not from 1 to 2048");
        assert_eq!(refused("width", "2049"), "the attribute `width` is 2049, not from 1 to 2048");
        assert!(refused("width", "wide").contains("`width`"), "{}", refused("width", "wide"));
        assert_eq!(refused("format", "gif"), "the attribute `format` is `gif`, neither `jpeg` nor `png`");
    }
}
