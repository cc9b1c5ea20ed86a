use super::*;

/// A frame with this content.
fn frame(kind: u8, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).unwrap().to_be_bytes();
    [&[kind, 0, 1][..], &length, content, &[0xCE]].concat()
}

fn short(text: &[u8]) -> Vec<u8> {
    [&[u8::try_from(text.len()).unwrap()][..], text].concat()
}

fn long(bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat()
}

/// The content of a header frame with these headers and this app id.
fn header(headers: &[u8], app: &[u8]) -> Vec<u8> {
    [&[0_u8, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1][..], &[0x20, 0x08], &long(headers), &short(app)].concat()
}

/// A table with an array in arrays, of which this is the number.
fn deep(arrays: usize) -> Vec<u8> {
    let inner = (0..arrays).fold(Vec::new(), |inner, _| [&b"A"[..], &long(&inner)].concat());
    [short(b"h"), inner].concat()
}

/// Sends bytes through, so many at a time. Returns what comes out, and the number of repairs.
fn sent(bytes: &[u8], at_a_time: usize) -> (Vec<u8>, usize) {
    let (mut screen, mut out, mut repairs) = (Screen::new(100), Vec::new(), 0);
    for part in bytes.chunks(at_a_time) {
        let mut part = part;
        while !part.is_empty() {
            let room = screen.room();
            let count = room.len().min(part.len());
            room[..count].copy_from_slice(&part[..count]);
            repairs += screen.fill(count).unwrap();
            part = &part[count..];
            let mut target = [0; 100];
            while screen.has_some() {
                let count = screen.take(&mut target);
                out.extend_from_slice(&target[..count]);
            }
        }
    }
    (out, repairs)
}

#[test]
fn text_that_is_not_utf8_gets_question_marks_wherever_producers_can_put_it() {
    let name = [short(b"n\xff"), b"tx".to_vec()].concat();
    let (named, repaired) = (name.clone(), [short(b"n?"), b"tx".to_vec()].concat());
    let deliver = |key: &[u8]| [&[0_u8, 60, 0, 60][..], &short(b"tag"), &[0; 9], &short(b""), &short(key)].concat();
    let got = |key: &[u8]| [&[0_u8, 60, 0, 71][..], &[0; 9], &short(b"e"), &short(key), &[0; 4]].concat();
    let returned = |key: &[u8]| [&[0_u8, 60, 0, 50, 1, 2][..], &short(b"NO_ROUTE"), &short(b"e"), &short(key)].concat();
    let closed = |why: &[u8]| [&[0_u8, 20, 0, 40, 1, 2][..], &short(why), &[0; 4]].concat();
    let tuned = |limit: u32| [&[0_u8, 10, 0, 30, 7, 255][..], &limit.to_be_bytes(), &[0, 60]].concat();
    let cases = [
        (METHOD, tuned(131_072), tuned(131_172), 0),
        (HEADER, header(&named, b"caf\xe9"), header(&repaired, b"caf?"), 2),
        (HEADER, header(&deep(DEEPEST - 1), "café".as_bytes()), header(&deep(DEEPEST - 1), "café".as_bytes()), 0),
        (METHOD, deliver(b"\xe9t\xe9"), deliver(b"?t?"), 1),
        (METHOD, got(b"a\xf0\x9f"), got(b"a??"), 1),
        (METHOD, returned(b"\xff"), returned(b"?"), 1),
        (METHOD, closed(b"no queue '\xc3"), closed(b"no queue '?"), 1),
        (3, b"\xff\xfe".to_vec(), b"\xff\xfe".to_vec(), 0),
    ];
    for (kind, content, expected, repairs) in &cases {
        assert_eq!(sent(&frame(*kind, content), 4096), (frame(*kind, expected), *repairs), "{content:?}");
    }
    let all = |expected: bool| {
        cases.iter().flat_map(|case| frame(case.0, if expected { &case.2 } else { &case.1 })).collect::<Vec<_>>()
    };
    for at_a_time in [1, 2, 7, 50, 4096] {
        assert_eq!(sent(&all(false), at_a_time), (all(true), 6), "{at_a_time} bytes at a time");
    }
}

#[test]
fn a_value_at_a_great_depth_becomes_bytes() {
    let (out, repairs) = sent(&frame(HEADER, &header(&deep(5000), b"")), 4096);
    assert_eq!(repairs, 1);
    // Two bytes of the name, and the type and the length of each array.
    let nested = HEAD + 12 + 2 + 4 + 2 + 5 * (DEEPEST - 1);
    assert_eq!((out[nested - 5], out[nested], out[nested + 5]), (b'A', BYTES, b'A'));
}

#[test]
fn every_type_of_value_is_passed_over() {
    let mut headers = Vec::new();
    for (kind, size) in (*b"tbBsUuIifDLldTV").into_iter().zip([1, 1, 1, 2, 2, 2, 4, 4, 4, 5, 8, 8, 8, 8, 0]) {
        headers.extend([short(b"n"), vec![kind], vec![0xff; size]].concat());
    }
    for kind in *b"SxAF" {
        let content = if kind == b'F' { [short(b"n"), b"V".to_vec()].concat() } else { b"V".to_vec() };
        headers.extend([short(b"n"), vec![kind], long(&content)].concat());
    }
    headers.extend([short(b"last\xff"), b"V".to_vec()].concat());
    assert_eq!(sent(&frame(HEADER, &header(&headers, b"\xff")), 4096).1, 2);
}

#[test]
fn a_frame_in_another_form_is_passed_on_and_a_huge_one_refused() {
    let cut = frame(HEADER, &header(&[200], b"")[..]);
    for bytes in [frame(METHOD, &[]), frame(HEADER, &[0; 3]), cut, b"AMQP\x00\x00\x09\x01".to_vec()] {
        assert_eq!(sent(&bytes, 4096), (bytes, 0));
    }
    let mut screen = Screen::new(100);
    screen.room()[..HEAD].copy_from_slice(&[HEADER, 0, 1, 0xff, 0, 0, 0]);
    assert!(screen.fill(HEAD).is_err());
}
