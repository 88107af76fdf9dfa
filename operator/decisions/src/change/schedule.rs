//! The mistakes of a schedule, in words: the parser's own do not name field and range. Pure.

use gputenancy_crds::words::counted;

/// A field of a schedule: its name, the numbers that it takes, and names for them from the first number on.
struct Field {
    name: &'static str,
    least: u32,
    most: u32,
    names: &'static [&'static str],
}

const MONTHS: [&str; 12] = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const DAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// The five fields, as in a `CronJob`. 7 is Sunday as well.
static FIELDS: [Field; 5] = [
    Field { name: "minute", least: 0, most: 59, names: &[] },
    Field { name: "hour", least: 0, most: 23, names: &[] },
    Field { name: "day of the month", least: 1, most: 31, names: &[] },
    Field { name: "month", least: 1, most: 12, names: &MONTHS },
    Field { name: "day of the week", least: 0, most: 7, names: &DAYS },
];

/// The first mistake, as a clause with what to write. `None`: nothing that is known here is wrong.
pub(super) fn mistake(schedule: &str) -> Option<String> {
    let texts: Vec<&str> = schedule.split_whitespace().collect();
    if texts.len() != FIELDS.len() {
        return Some(format!(
            "it has {}: write five, as in a CronJob, such as 0 2 * * 6",
            counted(texts.len(), "field")
        ));
    }
    FIELDS.iter().zip(texts).flat_map(|(field, text)| text.split(',').map(move |part| (field, part))).find_map(wrong)
}

/// A step beyond the range of its field, which other parsers read as the first value alone.
pub(super) fn excessive_step(schedule: &str) -> Option<String> {
    let parts = FIELDS.iter().zip(schedule.split_whitespace());
    parts.flat_map(|(field, text)| text.split(',').map(move |part| (field, part))).find_map(|(field, part)| {
        let (_, step) = part.split_once('/')?;
        wrong_step(field, step).filter(|_| step.parse::<u32>().is_ok())
    })
}

fn wrong((field, part): (&Field, &str)) -> Option<String> {
    let (range, step) = part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
    if let Some(wrong) = step.and_then(|step| wrong_step(field, step)) {
        return Some(wrong);
    }
    if matches!(range, "*" | "?") {
        return None;
    }
    let (first, last) = range.split_once('-').map_or((range, None), |(first, last)| (first, Some(last)));
    let values: Vec<(&str, Option<u32>)> =
        [Some(first), last].into_iter().flatten().map(|t| (t, number(field, t))).collect();
    if let Some((text, _)) = values.iter().find(|(_, number)| number.is_none()) {
        return Some(format!("{text} is no {}: {}", field.name, what_to_write(field)));
    }
    let backwards = matches!(values.as_slice(), [(_, first), (_, last)] if first > last);
    backwards.then(|| {
        format!("the range {range} of the {} ends before it begins: write the smaller value first", field.name)
    })
}

fn wrong_step(field: &Field, step: &str) -> Option<String> {
    let most = field.most - field.least;
    let fits = step.parse().is_ok_and(|step: u32| (1..=most).contains(&step));
    (!fits).then(|| format!("{step} is no step of the {}: write 1 to {most} after the slash", field.name))
}

/// The number of a value, which may be written as a name.
fn number(field: &Field, text: &str) -> Option<u32> {
    let named = field.names.iter().position(|name| name.eq_ignore_ascii_case(text));
    let named = named.and_then(|at| u32::try_from(at).ok()).map(|at| field.least + at);
    named.or_else(|| text.parse().ok().filter(|n| (field.least..=field.most).contains(n)))
}

fn what_to_write(Field { name: _, least, most, names }: &Field) -> String {
    match (names.first(), names.last()) {
        (Some(first), Some(last)) => format!("write {least} to {most}, or {first} to {last}"),
        _ => format!("write {least} to {most}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistake_names_the_field_and_its_range() {
        for (schedule, expected) in [
            ("0 25 * * *", "25 is no hour: write 0 to 23"),
            ("60 2 * * *", "60 is no minute: write 0 to 59"),
            ("0 2 0 * *", "0 is no day of the month: write 1 to 31"),
            ("0 2 * JANUARY *", "JANUARY is no month: write 1 to 12, or JAN to DEC"),
            ("0 2 * * 8", "8 is no day of the week: write 0 to 7, or SUN to SAT"),
            ("0 2 * * MON-SON", "SON is no day of the week: write 0 to 7, or SUN to SAT"),
            (
                "0 2 * * SAT-MON",
                "the range SAT-MON of the day of the week ends before it begins: write the smaller value first",
            ),
            ("*/61 * * * *", "61 is no step of the minute: write 1 to 59 after the slash"),
            ("0 2/0 * * *", "0 is no step of the hour: write 1 to 23 after the slash"),
            ("0 2 * *", "it has 4 fields: write five, as in a CronJob, such as 0 2 * * 6"),
            ("@weekly", "it has 1 field: write five, as in a CronJob, such as 0 2 * * 6"),
            ("", "it has 0 fields: write five, as in a CronJob, such as 0 2 * * 6"),
        ] {
            assert_eq!(mistake(schedule).as_deref(), Some(expected), "{schedule}");
        }
        for schedule in ["0 2 * * 6", "*/15 8-17 1,15 jan-mar Mon-Fri", "0 2 ? * 7", "59 23 31 12 0"] {
            assert_eq!((mistake(schedule), excessive_step(schedule)), (None, None), "{schedule}");
        }
    }

    #[test]
    fn step_beyond_its_field_is_found_also_where_a_parser_takes_it() {
        assert!(excessive_step("0 */24 * * *").unwrap().starts_with("24 is no step of the hour"));
        assert!(excessive_step("*/61 * * * *").is_some());
        assert_eq!(excessive_step("*/30 * * * *"), None);
    }
}
