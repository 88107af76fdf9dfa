//! Names from objects that tenants write, validated before they reach the URL of a request.

use std::fmt;

/// A DNS-1123 subdomain, the form of almost all object names: at most 253 characters, none of which changes the meaning of a URL.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectName(String);

impl ObjectName {
    /// Validates a name; `None`: the API server would refuse it too.
    pub fn parse(text: &str) -> Option<Self> {
        let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let label = |label: &str| {
            let (first, last) = (label.bytes().next(), label.bytes().last());
            first.is_some_and(alphanumeric)
                && last.is_some_and(alphanumeric)
                && label.bytes().all(|b| alphanumeric(b) || b == b'-')
        };
        (text.len() <= 253 && text.split('.').all(label)).then(|| Self(text.to_owned()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_name_accepts_dns_subdomains_and_nothing_else() {
        for name in ["web", "web-5c9f", "a.b-c.d0", "0", &"a".repeat(253)] {
            assert_eq!(ObjectName::parse(name).as_ref().map(ObjectName::as_str), Some(name));
        }
        let long = "a".repeat(300);
        for name in [
            "", ".", "a..b", "-a", "a-", "../../x", "a/b", "a?b", "a#b", "a%2fb", "a b", "Web", "a_b", "bücher", "a\n",
            &long,
        ] {
            assert_eq!(ObjectName::parse(name), None, "{name:?}");
        }
    }
}
