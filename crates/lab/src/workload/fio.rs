//! fio's job files: sections of `key=value`; `[global]` applies to the jobs after it. Jobs run concurrently until one
//! has `stonewall`.

use seam::Nanos;

use super::file::SpecError;
use super::{AccessKind, Job, Pace, Pattern, Skew, Spec, Step};

/// Keys that are accepted and ignored.
const IGNORED: [&str; 24] = [
    "ioengine",
    "direct",
    "buffered",
    "filename",
    "directory",
    "name",
    "description",
    "group_reporting",
    "time_based",
    "thread",
    "randrepeat",
    "norandommap",
    "random_generator",
    "randseed",
    "invalidate",
    "refill_buffers",
    "end_fsync",
    "ramp_time",
    "uri",
    "create_on_open",
    "disable_slat",
    "disable_clat",
    "log_avg_msec",
    "gtod_reduce",
];
/// Maximum request size, in bytes.
const REQUEST_BYTES_MAX: u64 = 32 << 20;

/// Line number and text of a value.
type Value = (usize, String);

/// The settings of a section.
#[derive(Clone, Default)]
struct Section {
    name: String,
    line: usize,
    keys: Vec<(String, Value)>,
    /// True when the job waits for all jobs before it.
    waits_for_previous: bool,
}

/// Parses a job file for a volume of `size_bytes`.
pub fn parse(name: &str, text: &str, size_bytes: u64) -> Result<Spec, SpecError> {
    let (mut global, mut sections) = (Section::default(), Vec::<Section>::new());
    let mut in_global = true;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with([';', '#']) {
            continue;
        }
        if let Some(title) = line.strip_prefix('[') {
            let title = title
                .strip_suffix(']')
                .ok_or_else(|| SpecError::new(number, "a section name without its closing bracket"))?;
            in_global = title == "global";
            if !in_global {
                sections.push(Section {
                    name: title.to_owned(),
                    line: number,
                    waits_for_previous: false,
                    ..global.clone()
                });
            }
            continue;
        }
        let section = if in_global {
            &mut global
        } else {
            sections.last_mut().expect("a key outside [global] follows a section name")
        };
        section.parse_line(line, number)?;
    }
    if sections.is_empty() {
        return Err(SpecError::new(1, "the file has no job"));
    }
    let mut steps = Vec::<Step>::new();
    for section in &sections {
        if steps.is_empty() || section.waits_for_previous {
            steps.push(Step { name: section.name.clone(), time: None, jobs: Vec::new() });
        }
        let step = steps.last_mut().expect("the first section adds a step");
        step.time = step.time.max(section.time()?);
        step.jobs.extend(section.jobs(size_bytes)?);
    }
    Ok(Spec { name: name.to_owned(), steps })
}

/// Parses a size with an optional `k`, `m`, `g` or `t` of 1,024 each.
fn parse_bytes((line, text): &Value) -> Result<u64, SpecError> {
    let error = || SpecError::new(*line, format!("\"{text}\" is not a size: write 4096, 4k, 64m or 1g"));
    let lower_case = text.to_lowercase();
    let digits = lower_case.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let shift = match lower_case[digits.len()..].trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(error()),
    };
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift)).ok_or_else(error)
}

/// Parses a size, or a percentage of `whole`.
fn parse_bytes_or_percent(value: &Value, whole: u64) -> Result<u64, SpecError> {
    match value.1.strip_suffix('%') {
        Some(percent) => Ok(whole * parse_number(&(value.0, percent.to_owned()), 100)? / 100),
        None => parse_bytes(value),
    }
}

/// Parses a number up to `max`.
fn parse_number((line, text): &Value, max: u64) -> Result<u64, SpecError> {
    let number = text.trim().parse::<u64>().ok().filter(|number| *number <= max);
    number.ok_or_else(|| SpecError::new(*line, format!("\"{text}\" is not a number up to {max}")))
}

/// Parses a time in `unit`, or with `us`, `ms`, `s`, `m` or `h`.
fn parse_time((line, text): &Value, unit: Nanos) -> Result<Nanos, SpecError> {
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "" => unit,
        "us" => Nanos::from_micros(1),
        "ms" => Nanos::from_millis(1),
        "s" => Nanos::from_secs(1),
        "m" => Nanos::from_secs(60),
        "h" => Nanos::from_secs(3_600),
        _ => return Err(SpecError::new(*line, format!("\"{text}\" is not a time: write 30, 30s, 2m or 1h"))),
    };
    Ok(Nanos(parse_number(&(*line, digits.to_owned()), 1 << 32)?.saturating_mul(unit.0)))
}

impl Section {
    fn parse_line(&mut self, line: &str, number: usize) -> Result<(), SpecError> {
        const SUPPORTED: [&str; 16] = [
            "rw",
            "bs",
            "bssplit",
            "rwmixread",
            "rwmixwrite",
            "percentage_random",
            "random_distribution",
            "iodepth",
            "numjobs",
            "size",
            "offset",
            "blockalign",
            "runtime",
            "rate_iops",
            "thinktime",
            "startdelay",
        ];
        let (key, value) = line.split_once('=').unwrap_or((line, "1"));
        let key = match key.trim() {
            "readwrite" => "rw",
            "blocksize" => "bs",
            "ba" => "blockalign",
            "wait_for_previous" => "stonewall",
            key => key,
        };
        match key {
            "stonewall" => self.waits_for_previous = true,
            "io_size" => return Err(SpecError::new(number, "io_size is not supported: use runtime")),
            _ if SUPPORTED.contains(&key) => {
                self.keys.retain(|(known, _)| known != key);
                self.keys.push((key.to_owned(), (number, value.trim().to_owned())));
            }
            _ if IGNORED.contains(&key) => (),
            _ => return Err(SpecError::new(number, format!("\"{key}\" is not supported"))),
        }
        Ok(())
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.keys.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    fn time(&self) -> Result<Option<Nanos>, SpecError> {
        self.get("runtime").map(|value| parse_time(value, Nanos::from_secs(1))).transpose()
    }

    /// Percentage of reads, and of random requests.
    fn read_and_random_percent(&self) -> Result<(u32, u32), SpecError> {
        let (line, rw) = self.get("rw").cloned().unwrap_or((self.line, "read".to_owned()));
        let percent = |key: &str| self.get(key).map(|value| parse_number(value, 100)).transpose();
        let mixed_reads_percent = match (percent("rwmixread")?, percent("rwmixwrite")?) {
            (Some(reads_percent), _) => reads_percent,
            (None, Some(writes_percent)) => 100 - writes_percent,
            (None, None) => 50,
        };
        let (is_random, direction) =
            rw.strip_prefix("rand").map_or((false, rw.as_str()), |direction| (true, direction));
        let reads_percent = match direction {
            "read" => 100,
            "write" => 0,
            "rw" | "readwrite" => mixed_reads_percent,
            _ => {
                return Err(SpecError::new(
                    line,
                    format!("rw={rw} is not supported: read, write, rw, or one of them after rand"),
                ));
            }
        };
        let random_percent = if is_random { percent("percentage_random")?.unwrap_or(100) } else { 0 };
        Ok((reads_percent as u32, random_percent as u32))
    }

    /// Request sizes of reads and of writes: pairs of percentage and bytes.
    fn sizes(&self) -> Result<[Vec<(u32, u32)>; 2], SpecError> {
        let parse_size = |line: usize, text: &str| {
            let size = parse_bytes(&(line, text.to_owned()))?;
            let fits = (1..=REQUEST_BYTES_MAX).contains(&size);
            fits.then_some(size as u32).ok_or_else(|| SpecError::new(line, format!("{text}: the largest size is 32m")))
        };
        let (line, text) = match (self.get("bssplit"), self.get("bs")) {
            (Some((line, text)), _) => {
                let parse_split = |text: &str| -> Result<Vec<(u32, u32)>, SpecError> {
                    let parse_entry = |entry: &str| {
                        let (bytes, percent) = entry.split_once('/').unwrap_or((entry, ""));
                        let percent = parse_number(&(*line, percent.to_owned()), 100)?;
                        Ok((percent as u32, parse_size(*line, bytes)?))
                    };
                    let list: Vec<(u32, u32)> = text.split(':').map(parse_entry).collect::<Result<_, SpecError>>()?;
                    let sum: u32 = list.iter().map(|(percent, _)| percent).sum();
                    let text = format!("bssplit: the parts add up to {sum} %, not 100");
                    if sum == 100 { Ok(list) } else { Err(SpecError::new(*line, text)) }
                };
                let (reads, writes) = text.split_once(',').unwrap_or((text, text));
                return Ok([parse_split(reads)?, parse_split(writes)?]);
            }
            (None, Some(value)) => value.clone(),
            (None, None) => (self.line, "4k".to_owned()),
        };
        let mut parts = text.split(',');
        let reads = parts.next().unwrap_or_default();
        let writes = parts.next().unwrap_or(reads);
        Ok([vec![(100, parse_size(line, reads)?)], vec![(100, parse_size(line, writes)?)]])
    }

    fn skew(&self) -> Result<Skew, SpecError> {
        let Some((line, text)) = self.get("random_distribution") else { return Ok(Skew::Uniform) };
        let error = |reason: &str| SpecError::new(*line, format!("random_distribution={text}: {reason}"));
        match text.split_once(':') {
            None if text == "random" => Ok(Skew::Uniform),
            Some(("zipf", exponent)) => {
                let exponent = exponent.parse::<f64>().ok().filter(|exponent| *exponent > 0.0 && *exponent < 1.0);
                exponent.map(Skew::Zipf).ok_or_else(|| error("an exponent between 0 and 1 is supported"))
            }
            _ => Err(error("random and zipf:EXPONENT are supported")),
        }
    }

    fn jobs(&self, size_bytes: u64) -> Result<Vec<Job>, SpecError> {
        let (reads_percent, random_percent) = self.read_and_random_percent()?;
        let [read_sizes, write_sizes] = self.sizes()?;
        let directions = [(reads_percent, 100, read_sizes), (100 - reads_percent, 0, write_sizes)];
        let kinds = directions.into_iter().flat_map(|(weight, read_percent, sizes)| {
            let kind =
                move |(percent, bytes)| AccessKind { weight: weight * percent, bytes, read_percent, random_percent };
            sizes.into_iter().map(kind)
        });
        let mix: Vec<AccessKind> = kinds.filter(|kind| kind.weight > 0).collect();
        let start_bytes =
            self.get("offset").map(|value| parse_bytes_or_percent(value, size_bytes)).transpose()?.unwrap_or(0);
        let remainder = size_bytes.saturating_sub(start_bytes);
        let region_bytes =
            self.get("size").map(|value| parse_bytes_or_percent(value, size_bytes)).transpose()?.unwrap_or(remainder);
        let min_bytes = mix.iter().map(|kind| kind.bytes).min().expect("a mix has at least one kind of access");
        let align_bytes = match self.get("blockalign") {
            Some(value) => parse_bytes(value)?.clamp(1, REQUEST_BYTES_MAX) as u32,
            None => min_bytes,
        };
        let skew = self.skew()?;
        let pattern = Pattern { start_bytes, region_bytes, mix, align_bytes, skew, drift_bytes: 0 };
        let number_of = |key: &str, max| self.get(key).map(|value| parse_number(value, max)).transpose();
        let depth = number_of("iodepth", 65_536)?.unwrap_or(1).max(1) as u32;
        let rate = number_of("rate_iops", 100_000_000)?.filter(|rate| *rate > 0);
        let think = self.get("thinktime").map(|value| parse_time(value, Nanos::from_micros(1))).transpose()?;
        let pace = match (rate, think.filter(|think| *think > Nanos::ZERO)) {
            (Some(_), Some(_)) => {
                return Err(SpecError::new(self.line, format!("[{}]: either rate_iops or thinktime", self.name)));
            }
            (Some(rate), None) => Pace::Rate(rate as f64),
            (None, Some(think)) => Pace::Think(think),
            (None, None) => Pace::ClosedLoop,
        };
        let start_delay = self.get("startdelay").map(|value| parse_time(value, Nanos::from_secs(1))).transpose()?;
        let start_delay = start_delay.unwrap_or(Nanos::ZERO);
        let job = Job { start_delay, ..Job::closed_loop(&self.name, pattern, depth).paced(pace) };
        Ok(vec![job; number_of("numjobs", 4_096)?.unwrap_or(1).max(1) as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = include_str!("fixtures/database.fio");
    const MIB: u64 = 1 << 20;

    #[test]
    fn fio_job_file_is_parsed() {
        let spec = parse("x", FILE, 1 << 30).expect("a valid file");
        let steps: Vec<_> = spec.steps.iter().map(|step| (step.name.as_str(), step.jobs.len(), step.time)).collect();
        let seconds = |count| Some(Nanos::from_secs(count));
        assert_eq!(steps, [("data", 4, seconds(120)), ("backup", 1, seconds(30))]);
        let [data, journal, mixed, _] = &spec.steps[0].jobs[..] else { panic!("four jobs") };
        assert_eq!((data.depth, data.pattern.region_bytes, data.pattern.skew), (16, 512 * MIB, Skew::Zipf(0.9)));
        let kind =
            |weight, bytes, read_percent, random_percent| AccessKind { weight, bytes, read_percent, random_percent };
        assert_eq!(data.pattern.mix, [kind(6_700, 8192, 100, 100), kind(3_300, 8192, 0, 100)]);
        assert_eq!((journal.pace, journal.pattern.start_bytes), (Pace::Rate(200.0), 512 * MIB));
        assert_eq!(journal.pattern.mix, [kind(10_000, 4096, 0, 0)]);
        assert_eq!(mixed.pace, Pace::Think(Nanos::from_millis(2)));
        assert_eq!(mixed.pattern.mix[1], kind(2_000, 65_536, 100, 50));
        assert_eq!(spec.check(1 << 30, 512), Ok(()));
    }

    #[test]
    fn errors_name_their_line() {
        let error_of = |from: &str, to: &str| {
            parse("x", &FILE.replace(from, to), 1 << 30).expect_err("an invalid file").to_string()
        };
        let errors = [
            error_of("rw=write", "rw=trim"),
            error_of("iodepth=16", "iodepth=many"),
            error_of("iodepth=16", "zonemode=zbd"),
            error_of("4k/60", "4k/50"),
            error_of("zipf:0.9", "pareto:0.9"),
            error_of("size=512m", "size=512q"),
            error_of("[journal]", "[journal"),
            error_of("runtime=30", "runtime=soon"),
            parse("x", "[global]\nbs=4k\n", 1 << 30).expect_err("a file without a job").to_string(),
        ];
        insta::assert_snapshot!(errors.join("\n"));
    }
}
