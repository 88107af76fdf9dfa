//! Markdown pages: links, and code with file paths, make targets and chart values.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

/// A page of the documentation.
#[derive(Clone, Debug)]
pub struct Page {
    /// Its path below the root of the repository.
    pub path: PathBuf,
    text: String,
}

impl Page {
    /// Reads a page.
    pub fn read(root: &Path, path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), text: fs::read_to_string(root.join(path))? })
    }

    /// Number of lines.
    pub fn lines(&self) -> usize {
        self.text.lines().count()
    }

    /// Targets of links, with line numbers.
    pub fn links(&self) -> Vec<(usize, &str)> {
        let prose = self.numbered().filter(|(_, _, code)| !code);
        let links = prose.flat_map(|(number, line, _)| {
            let targets = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
            targets.map(move |(target, _)| (number, target))
        });
        links.collect()
    }

    /// Words of code, with line numbers: of code blocks, and of code spans in the text.
    pub fn code(&self) -> Vec<(usize, &str)> {
        let words = self.numbered().flat_map(|(number, line, block)| {
            let spans: Vec<&str> = if block { vec![line] } else { line.split('`').skip(1).step_by(2).collect() };
            spans.into_iter().flat_map(str::split_whitespace).map(move |word| (number, word))
        });
        words.collect()
    }

    /// Anchors of the headings, as GitHub derives them.
    pub fn anchors(&self) -> BTreeSet<String> {
        let headings = self.numbered().filter(|(_, line, code)| !code && line.starts_with('#'));
        headings.map(|(_, line, _)| anchor(line.trim_start_matches('#').trim())).collect()
    }

    /// Lines with their numbers, and whether they are part of a code block.
    fn numbered(&self) -> impl Iterator<Item = (usize, &str, bool)> {
        let mut block = false;
        self.text.lines().enumerate().filter_map(move |(index, line)| {
            let fence = line.trim_start().starts_with("```");
            block ^= fence;
            (!fence).then_some((index + 1, line, block))
        })
    }
}

/// The anchor of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    kept.chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

/// All Markdown files below a folder, without hidden folders and build outputs.
pub fn pages(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut pages = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            let (name, path) = (entry.file_name(), folder.join(entry.file_name()));
            if entry.file_type()?.is_dir() {
                if !name.to_string_lossy().starts_with('.') && name != "target" {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|e| e == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    Ok(pages)
}
