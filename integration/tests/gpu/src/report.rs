//! The table of results, printed line by line, so that a run that is cut off shows what it has.

/// What was found so far.
#[derive(Debug, Default)]
pub struct Report {
    lines: usize,
    failed: usize,
}

impl Report {
    /// Something that must hold.
    pub fn holds(&mut self, check: &str, expected: &str, found: &str, ok: bool) {
        self.failed += usize::from(!ok);
        self.line(check, expected, found, if ok { "yes" } else { "NO" });
    }

    /// Something that does not hold.
    pub fn fails(&mut self, check: &str, expected: &str, found: &str) {
        self.holds(check, expected, found, false);
    }

    /// Something that was measured.
    pub fn measured(&mut self, check: &str, what: &str, found: &str) {
        self.line(check, what, found, "");
    }

    /// Nothing failed.
    pub fn all_hold(&self) -> bool {
        self.failed == 0
    }

    fn line(&mut self, check: &str, what: &str, found: &str, holds: &str) {
        if self.lines == 0 {
            println!("| check | what | found | holds |\n| --- | --- | --- | --- |");
        }
        self.lines += 1;
        println!("| {check} | {what} | {} | {holds} |", found.trim().replace('\n', "; "));
    }
}
