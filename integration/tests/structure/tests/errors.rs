//! Errors of the product have types.

use std::path::Path;

use super::files::sources;

/// Folders of the product.
const PRODUCT: [&str; 4] = ["agent", "cluster", "crds", "operator"];

/// Number of `Result` types of a source whose error is a text.
fn text_errors(source: &str) -> usize {
    source.split("Result<").skip(1).filter(|rest| last_argument(rest) == Some("String")).count()
}

/// The last of the generic arguments that end with the first unpaired `>`; `None`: there is only one.
fn last_argument(text: &str) -> Option<&str> {
    let (mut depth, mut start, mut before) = (0, None, ' ');
    for (at, character) in text.char_indices() {
        match character {
            '>' if before == '-' => {}
            '>' if depth == 0 => return start.and_then(|start| text.get(start..at)).map(str::trim),
            '<' | '(' | '[' => depth += 1,
            '>' | ')' | ']' => depth -= 1,
            ',' if depth == 0 => start = Some(at + 1),
            ';' | '{' => return None,
            _ => {}
        }
        before = character;
    }
    None
}

#[test]
fn errors_of_the_product_are_no_texts() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap();
    let (mut found, mut read) = (Vec::new(), 0);
    for (file, text) in PRODUCT.iter().flat_map(|folder| sources(&root.join(folder))) {
        let file = file.strip_prefix(&root).unwrap().to_owned();
        if file.iter().any(|part| part == "src") {
            read += 1;
            let count = text_errors(&text);
            if count > 0 {
                found.push((file, count));
            }
        }
    }
    assert!(read > 300, "{read} files");
    assert!(found.is_empty(), "write an enum with thiserror in place of Result<_, String>: {found:?}");
}

#[test]
fn text_error_is_found_behind_any_value() {
    for text in ["Result<(), String>", "Result<Vec<(u8, String)>, String>", "Result<Box<dyn Fn() -> u8>,\n    String>"]
    {
        assert_eq!(text_errors(text), 1, "{text}");
    }
    for text in
        ["Result<String, Error>", "Result<String>", "Result<Vec<String>, Option<String>>", "Result<(u8, String)>"]
    {
        assert_eq!(text_errors(text), 0, "{text}");
    }
}
