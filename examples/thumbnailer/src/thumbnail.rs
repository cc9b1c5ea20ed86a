//! The thumbnail of an image: bytes in, bytes out.

use std::io::Cursor;

use hostler_guest::Malformed;
use image::codecs::jpeg::JpegEncoder;
use image::codecs::png::PngEncoder;
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageEncoder, ImageError, ImageReader, Limits, RgbImage, RgbaImage};

/// Maximum memory of an image while it is decoded, in bytes, without [`AROUND`]. Both together must fit into
/// `limits.memory` of `hostler.toml`.
const ROOM: u64 = 208 << 20;

/// Maximum memory of a decoder in addition to the pixels, in bytes: metadata, and a few rows.
const AROUND: u64 = 32 << 20;

/// The most that a pixel takes: 11 bytes in a progressive CMYK JPEG, all coefficients at once and the result; 12 in a PNG
/// of 16 bits with transparency, as it is and as 8 bits.
const PIXEL: u64 = 12;

/// Quality of a JPEG, from 1 to 100.
const QUALITY: u8 = 82;

/// The largest colour profile that is kept, in bytes: cameras' have some hundred.
const PROFILE: usize = 16 << 10;

/// Encoding of a thumbnail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Jpeg,
    Png,
}

/// The thumbnail of an encoded image, at most `width` wide and as the camera was held. Without a format it is a JPEG, or a
/// PNG if the image has an alpha channel.
///
/// # Errors
/// The bytes are no image that can be read, or one that would not fit into memory.
pub fn thumbnail(bytes: &[u8], width: u32, format: Option<Format>) -> Result<Vec<u8>, Malformed> {
    let mut decoder = decoder(bytes)?;
    let orientation = decoder.orientation().map_err(unreadable)?;
    let profile = decoder.icc_profile().map_err(unreadable)?.filter(|profile| is_kept(profile));
    let image = DynamicImage::from_decoder(decoder).map_err(unreadable)?;
    let size = size(image.width(), image.height(), width, orientation);
    let format = format.unwrap_or(if image.color().has_alpha() { Format::Png } else { Format::Jpeg });
    let mut small = match (image.color().has_alpha(), format) {
        (false, _) => DynamicImage::from(scaled(image, size).into_rgb8()),
        (true, Format::Png) => DynamicImage::from(divided(scaled_weighted(image, size))),
        (true, Format::Jpeg) => DynamicImage::from(on_white(&scaled_weighted(image, size))),
    };
    small.apply_orientation(orientation);
    encode(&small, format, profile).map_err(|error| Malformed::new(format!("it cannot be encoded: {error}")))
}

/// Reads no more than what an image says of itself.
fn decoder(bytes: &[u8]) -> Result<impl ImageDecoder + '_, Malformed> {
    let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format();
    let mut reader = reader.map_err(|error| Malformed::new(error.to_string()))?;
    let Some(format) = reader.format() else {
        return Err(Malformed::new("the body is no image of a known format: JPEG, PNG and WebP are"));
    };
    if !format.reading_enabled() {
        return Err(Malformed::new(format!("the body is of the format {format:?}: only JPEG, PNG and WebP are read")));
    }
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(AROUND);
    reader.limits(limits);
    let decoder = reader.into_decoder().map_err(unreadable)?;
    let (width, height) = decoder.dimensions();
    // The decoder of JPEG copies what it reads.
    let pixels = ROOM.saturating_sub(2 * bytes.len() as u64) / PIXEL;
    if u64::from(width) * u64::from(height) > pixels {
        let most = pixels as f64 / 1e6;
        return Err(Malformed::new(format!(
            "the image is too large: {width} x {height} pixels, and {most:.1} megapixels fit into memory"
        )));
    }
    Ok(decoder)
}

fn unreadable(error: ImageError) -> Malformed {
    Malformed::new(match error {
        ImageError::Limits(_) => "the image is too large for the memory that it may take".to_owned(),
        error => format!("the image cannot be read: {error}"),
    })
}

/// Width and height before it is turned: the aspect is kept, and nothing is enlarged.
fn size(width: u32, height: u32, wanted: u32, orientation: Orientation) -> (u32, u32) {
    use Orientation::{Rotate90, Rotate90FlipH, Rotate270, Rotate270FlipH};
    let turned = matches!(orientation, Rotate90 | Rotate270 | Rotate90FlipH | Rotate270FlipH);
    let across = if turned { height } else { width };
    if across <= wanted {
        return (width, height);
    }
    let part = |side: u32| {
        let scaled = (u64::from(side) * u64::from(wanted) + u64::from(across) / 2) / u64::from(across);
        u32::try_from(scaled).unwrap_or(u32::MAX).max(1)
    };
    (part(width), part(height))
}

fn scaled(image: DynamicImage, size: (u32, u32)) -> DynamicImage {
    match size == (image.width(), image.height()) {
        true => image,
        false => image.thumbnail_exact(size.0, size.1),
    }
}

/// The same with transparency, each colour multiplied by its opacity: the colour of what cannot be seen must not colour what
/// is beside it.
fn scaled_weighted(image: DynamicImage, size: (u32, u32)) -> RgbaImage {
    let mut image = image.into_rgba8();
    for pixel in image.pixels_mut() {
        let [colours @ .., alpha] = &mut pixel.0;
        for colour in colours {
            *colour = ((u32::from(*colour) * u32::from(*alpha) + 127) / 255) as u8;
        }
    }
    scaled(image.into(), size).into_rgba8()
}

/// Takes the weights out again.
fn divided(mut image: RgbaImage) -> RgbaImage {
    for pixel in image.pixels_mut() {
        let [colours @ .., alpha] = &mut pixel.0;
        let alpha = u32::from(*alpha);
        for colour in colours {
            *colour = (u32::from(*colour) * 255 + alpha / 2).checked_div(alpha).unwrap_or(0).min(255) as u8;
        }
    }
    image
}

fn on_white(image: &RgbaImage) -> RgbImage {
    let mut white = RgbImage::new(image.width(), image.height());
    for (to, from) in white.pixels_mut().zip(image.pixels()) {
        let [colours @ .., alpha] = from.0;
        to.0 = colours.map(|colour| colour.saturating_add(255 - alpha));
    }
    white
}

/// Returns true if a colour profile is small and fits the colours of a thumbnail.
fn is_kept(profile: &[u8]) -> bool {
    profile.len() <= PROFILE && profile.get(16..20) == Some(b"RGB ")
}

fn encode(image: &DynamicImage, format: Format, profile: Option<Vec<u8>>) -> Result<Vec<u8>, ImageError> {
    let mut bytes = Vec::new();
    match format {
        Format::Jpeg => write(image, JpegEncoder::new_with_quality(&mut bytes, QUALITY), profile)?,
        Format::Png => write(image, PngEncoder::new(&mut bytes), profile)?,
    }
    Ok(bytes)
}

fn write(image: &DynamicImage, mut encoder: impl ImageEncoder, profile: Option<Vec<u8>>) -> Result<(), ImageError> {
    if let Some(profile) = profile {
        encoder.set_icc_profile(profile).map_err(ImageError::Unsupported)?;
    }
    image.write_with_encoder(encoder)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use image::{ImageFormat, Luma, Rgb, Rgba};

    /// EXIF data with the orientation of the camera, as bytes of a TIFF with one entry.
    fn held(orientation: u8) -> Vec<u8> {
        [&b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0"[..], &[orientation, 0, 0, 0], &[0; 4]].concat()
    }

    fn encoded(image: impl Into<DynamicImage>, format: ImageFormat) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        image.into().write_to(&mut bytes, format).unwrap();
        bytes.into_inner()
    }

    pub fn png(image: impl Into<DynamicImage>) -> Vec<u8> {
        encoded(image, ImageFormat::Png)
    }

    fn made(bytes: &[u8], width: u32, format: Option<Format>) -> (ImageFormat, DynamicImage) {
        let made = thumbnail(bytes, width, format).unwrap();
        (image::guess_format(&made).unwrap(), image::load_from_memory(&made).unwrap())
    }

    fn refused(bytes: &[u8]) -> String {
        thumbnail(bytes, 320, None).unwrap_err().to_string()
    }

    /// The left half is red, the right one blue.
    fn two_halves(width: u32, height: u32) -> RgbImage {
        RgbImage::from_fn(width, height, |x, _| Rgb(if x < width / 2 { [255, 0, 0] } else { [0, 0, 255] }))
    }

    #[test]
    fn every_format_is_read() {
        for format in [ImageFormat::Jpeg, ImageFormat::Png, ImageFormat::WebP] {
            let (made, image) = made(&encoded(two_halves(800, 600), format), 320, None);
            assert_eq!((made, image.width(), image.height()), (ImageFormat::Jpeg, 320, 240), "{format:?}");
            let image = image.into_rgb8();
            let Rgb([red, _, blue]) = *image.get_pixel(10, 10);
            assert!(red > 240 && blue < 16, "{format:?}");
            let Rgb([red, _, blue]) = *image.get_pixel(310, 230);
            assert!(red < 16 && blue > 240, "{format:?}");
        }
        let grey = png(image::ImageBuffer::from_pixel(640, 2, Luma([0x8080_u16])));
        assert_eq!(made(&grey, 320, Some(Format::Png)).1, RgbImage::from_pixel(320, 1, Rgb([0x80; 3])).into());
    }

    #[test]
    fn the_aspect_is_kept_and_nothing_is_enlarged() {
        for ((width, height), expected) in
            [((640, 480), (320, 240)), ((1000, 1), (320, 1)), ((480, 6400), (320, 4267)), ((20, 10), (20, 10))]
        {
            let image = made(&png(RgbImage::new(width, height)), 320, Some(Format::Png)).1;
            assert_eq!((image.width(), image.height()), expected, "{width} x {height}");
        }
    }

    #[test]
    fn it_is_turned_as_the_camera_was_held() {
        let stored = |orientation| {
            let mut bytes = Vec::new();
            let mut encoder = JpegEncoder::new_with_quality(&mut bytes, 90);
            encoder.set_exif_metadata(held(orientation)).unwrap();
            DynamicImage::from(two_halves(800, 600)).write_with_encoder(encoder).unwrap();
            made(&bytes, 300, Some(Format::Png)).1.into_rgb8()
        };
        let is_red = |pixel: &Rgb<u8>| pixel.0[0] > 200;
        let plain = stored(1);
        assert_eq!((plain.dimensions(), is_red(plain.get_pixel(10, 10))), ((300, 225), true));
        let upside_down = stored(3);
        assert_eq!((upside_down.dimensions(), is_red(upside_down.get_pixel(10, 10))), ((300, 225), false));
        let on_its_side = stored(6);
        assert_eq!(on_its_side.dimensions(), (300, 400));
        assert!(is_red(on_its_side.get_pixel(150, 10)) && !is_red(on_its_side.get_pixel(150, 390)));
    }

    #[test]
    fn what_is_transparent_stays_so_in_a_png_and_becomes_white_in_a_jpeg() {
        // Red that is seen beside green that is not.
        let pixel = |x, _| Rgba(if x % 2 == 0 { [255, 0, 0, 255] } else { [0, 255, 0, 0] });
        let image = png(RgbaImage::from_fn(640, 640, pixel));
        let (format, small) = made(&image, 320, None);
        assert_eq!(format, ImageFormat::Png);
        let Rgba([red, green, blue, alpha]) = *small.into_rgba8().get_pixel(100, 100);
        assert!(red > 250 && green == 0 && blue == 0 && (126..=129).contains(&alpha), "{red} {green} {blue} {alpha}");
        let (format, small) = made(&image, 320, Some(Format::Jpeg));
        assert_eq!(format, ImageFormat::Jpeg);
        let Rgb([red, green, blue]) = *small.into_rgb8().get_pixel(100, 100);
        assert!(red > 250 && (120..=135).contains(&green) && (120..=135).contains(&blue), "{red} {green} {blue}");
    }

    #[test]
    fn a_small_colour_profile_for_rgb_is_kept() {
        let profile = |size: usize, space: &[u8; 4]| [&[0; 16][..], space, &vec![0; size - 20]].concat();
        let kept = |profile: Vec<u8>| {
            let mut bytes = Vec::new();
            let mut encoder = PngEncoder::new(&mut bytes);
            encoder.set_icc_profile(profile).unwrap();
            DynamicImage::from(RgbImage::new(8, 8)).write_with_encoder(encoder).unwrap();
            let small = thumbnail(&bytes, 4, None).unwrap();
            ImageReader::new(Cursor::new(small)).with_guessed_format().unwrap().into_decoder().unwrap().icc_profile()
        };
        let camera = profile(548, b"RGB ");
        assert_eq!(kept(camera.clone()).unwrap(), Some(camera));
        assert_eq!(kept(profile(548, b"GRAY")).unwrap(), None);
        assert_eq!(kept(profile(PROFILE + 1, b"RGB ")).unwrap(), None);
    }

    #[test]
    fn what_is_no_image_is_refused() {
        let unknown = "the body is no image of a known format: JPEG, PNG and WebP are";
        assert_eq!(refused(b""), unknown);
        assert_eq!(refused(b"{}"), unknown);
        assert_eq!(refused(b"GIF89a"), "the body is of the format Gif: only JPEG, PNG and WebP are read");
        let whole = png(two_halves(64, 64));
        assert!(refused(&whole[..whole.len() / 2]).starts_with("the image cannot be read: "));
        assert!(refused(b"\xff\xd8\xff\xe0").starts_with("the image cannot be read: "));
    }

    #[test]
    fn what_would_not_fit_into_memory_is_refused_before_it_is_decoded() {
        let mut bomb = encoded(RgbImage::new(16, 16), ImageFormat::Jpeg);
        let frame = bomb.windows(2).position(|marker| marker == [0xff, 0xc0]).unwrap();
        bomb[frame + 5..frame + 9].fill(0xff);
        let reason = "the image is too large: 65535 x 65535 pixels, and 18.2 megapixels fit into memory";
        assert_eq!(refused(&bomb), reason);
        bomb.resize(20 << 20, 0);
        assert!(refused(&bomb).ends_with("and 14.7 megapixels fit into memory"), "{}", refused(&bomb));
    }
}
