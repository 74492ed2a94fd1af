//! IOMeter's configuration files: a line that begins with an apostrophe names the contents of the lines after it.
//!
//! Each worker runs its assigned access specifications in sequence, and all workers run at once. The first
//! specification of every worker forms the first step, and so on. A file without workers has one step per
//! specification.

use seam::Nanos;

use super::file::SpecError;
use super::{AccessKind, Job, Pace, Pattern, Spec, Step};

const SECTOR: u64 = 512;

/// Labels that do not affect the requests to a volume.
const IGNORED: [&str; 30] = [
    "test setup",
    "test description",
    "run time",
    "ramp up time (s)",
    "default disk workers to spawn",
    "default network workers to spawn",
    "record results",
    "worker cycling",
    "disk cycling",
    "queue depth cycling",
    "start step step type",
    "start end step step type",
    "end test setup",
    "access specifications",
    "end access specifications",
    "manager list",
    "manager id, manager name",
    "manager network address",
    "default target settings for worker",
    "end default target settings for worker",
    "end assigned access specs",
    "target assignments",
    "target",
    "target type",
    "end target",
    "end target assignments",
    "end worker",
    "end manager",
    "end manager list",
    "end results display",
];

/// An access specification.
#[derive(Clone, Default)]
struct AccessSpec {
    name: String,
    mix: Vec<AccessKind>,
    /// Pause after each request, in milliseconds.
    delay_ms: u64,
    align_bytes: u32,
    /// Sum of the percentages of the sizes.
    percent_sum: u32,
    line: usize,
}

/// A worker and its assigned access specifications.
#[derive(Clone)]
struct Worker {
    depth: u32,
    sectors: u64,
    first_sector: u64,
    assigned: Vec<(usize, String)>,
}

impl Default for Worker {
    fn default() -> Self {
        Worker { depth: 1, sectors: 0, first_sector: 0, assigned: Vec::new() }
    }
}

/// The parsed contents of a file.
#[derive(Default)]
struct ConfigFile {
    /// Run time; 0 if the file has none.
    seconds: u64,
    accesses: Vec<AccessSpec>,
    workers: Vec<Worker>,
}

/// Parses a configuration file for a volume of `size_bytes`.
pub fn parse(name: &str, text: &str, size_bytes: u64) -> Result<Spec, SpecError> {
    let mut file = ConfigFile::default();
    let (mut label, mut skipped) = (String::new(), false);
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(comment) = line.trim().strip_prefix('\'') {
            let words: Vec<&str> = comment.trim_end_matches(['=', ' ']).split_whitespace().collect();
            label = words.join(" ").to_lowercase();
            // The result display settings of IOMeter are irrelevant.
            skipped = label.starts_with("results display") || skipped && label != "end results display";
            continue;
        }
        let value = line.trim();
        if value.is_empty() || skipped || value.starts_with("Version ") {
            continue;
        }
        file.parse_line(&label, value, number)?;
    }
    file.spec(name, size_bytes)
}

/// Parses the comma-separated numbers of a line.
fn parse_numbers(value: &str, line: usize) -> Result<Vec<u64>, SpecError> {
    let number = |text: &str| {
        text.trim().parse::<u64>().map_err(|_| SpecError::new(line, format!("\"{}\" is not a number", text.trim())))
    };
    value.split(',').map(number).collect()
}

impl ConfigFile {
    fn parse_line(&mut self, label: &str, value: &str, line: usize) -> Result<(), SpecError> {
        let no_worker = || SpecError::new(line, "this line must follow a worker");
        match label {
            "hours minutes seconds" => {
                let parts = parse_numbers(&value.split_whitespace().collect::<Vec<_>>().join(","), line)?;
                self.seconds = parts.iter().fold(0, |sum, part| sum * 60 + part);
            }
            "test type" if value != "NORMAL" => {
                return Err(SpecError::new(line, format!("test type {value}: only NORMAL is supported")));
            }
            "access specification name,default assignment" => {
                let name = value.rsplit_once(',').map_or(value, |(name, _)| name).to_owned();
                self.accesses.push(AccessSpec { name, line, ..AccessSpec::default() });
            }
            "size,% of size,% reads,% random,delay,burst,align,reply" => self.parse_access_line(value, line)?,
            "worker" => self.workers.push(Worker::default()),
            "worker type" if value != "DISK" => {
                return Err(SpecError::new(line, format!("a worker of type {value}: only DISK is supported")));
            }
            "test type" | "worker type" => (),
            label if label.starts_with("number of outstanding ios") => {
                let first = parse_numbers(value.split(',').next().unwrap_or_default(), line)?[0];
                self.workers.last_mut().ok_or_else(no_worker)?.depth = u32::try_from(first).unwrap_or(u32::MAX).max(1);
            }
            label if label.starts_with("disk maximum size,starting sector") => {
                let pair = parse_numbers(&value.split(',').take(2).collect::<Vec<_>>().join(","), line)?;
                let worker = self.workers.last_mut().ok_or_else(no_worker)?;
                (worker.sectors, worker.first_sector) = (pair[0], pair.get(1).copied().unwrap_or(0));
            }
            "assigned access specs" => {
                self.workers.last_mut().ok_or_else(no_worker)?.assigned.push((line, value.to_owned()));
            }
            label if IGNORED.contains(&label) => (),
            label => return Err(SpecError::new(line, format!("\"'{label}\" is not supported"))),
        }
        Ok(())
    }

    fn parse_access_line(&mut self, value: &str, line: usize) -> Result<(), SpecError> {
        let error = |text: &str| SpecError::new(line, text);
        let [bytes, weight, reads, random, delay, burst, align, reply] = parse_numbers(value, line)?[..] else {
            return Err(error(
                "expected eight numbers: size, % of size, % reads, % random, delay, burst, align, reply",
            ));
        };
        let access = self
            .accesses
            .last_mut()
            .ok_or_else(|| error("this line must follow the name of an access specification"))?;
        if bytes == 0 || bytes > 32 << 20 || weight > 100 || reads > 100 || random > 100 {
            return Err(error("expected a size from 1 byte to 32 MiB, and percentages up to 100"));
        }
        if burst > 1 && delay > 0 {
            return Err(error("a delay after several requests is not supported: burst must be 1"));
        }
        if reply > 0 {
            return Err(error("replies belong to network workers, which are not supported"));
        }
        if access.percent_sum > 0 && access.delay_ms != delay {
            return Err(error("delays that differ inside one access specification are not supported"));
        }
        let align = match align {
            0 => SECTOR as u32,
            align => u32::try_from(align).map_err(|_| error("an alignment of 4 GiB or more is not supported"))?,
        };
        access.align_bytes = if access.percent_sum == 0 { align } else { align.min(access.align_bytes) };
        access.delay_ms = delay;
        access.percent_sum += weight as u32;
        let [weight, bytes, read_percent, random_percent] = [weight, bytes, reads, random].map(|number| number as u32);
        access.mix.push(AccessKind { weight, bytes, read_percent, random_percent });
        Ok(())
    }

    fn spec(self, name: &str, size_bytes: u64) -> Result<Spec, SpecError> {
        if self.accesses.is_empty() {
            return Err(SpecError::new(1, "the file has no access specification"));
        }
        if let Some(access) = self.accesses.iter().find(|access| access.percent_sum != 100) {
            let text = format!(
                "\"{}\": the percentages of its sizes add up to {} %, not 100",
                access.name, access.percent_sum
            );
            return Err(SpecError::new(access.line, text));
        }
        let mut workers = self.workers;
        workers.retain(|worker| !worker.assigned.is_empty());
        if workers.is_empty() {
            let assigned = self.accesses.iter().map(|access| (access.line, access.name.clone())).collect();
            workers.push(Worker { assigned, ..Worker::default() });
        }
        let step_count = workers.iter().map(|worker| worker.assigned.len()).max().unwrap_or(0);
        let time = (self.seconds > 0).then(|| Nanos::from_secs(self.seconds));
        let mut steps = Vec::new();
        for index in 0..step_count {
            let mut jobs = Vec::new();
            for worker in &workers {
                let Some((line, assigned_name)) = worker.assigned.get(index) else { continue };
                let access = self.accesses.iter().find(|access| access.name == *assigned_name);
                let access = access.ok_or_else(|| {
                    SpecError::new(*line, format!("access specification \"{assigned_name}\" does not exist"))
                })?;
                jobs.push(access.job(worker, size_bytes));
            }
            steps.push(Step { name: jobs[0].name.clone(), time, jobs });
        }
        Ok(Spec { name: name.to_owned(), steps })
    }
}

impl AccessSpec {
    fn job(&self, worker: &Worker, size_bytes: u64) -> Job {
        let start_bytes = worker.first_sector * SECTOR;
        let remainder = size_bytes.saturating_sub(start_bytes);
        let region_bytes = if worker.sectors == 0 { remainder } else { worker.sectors * SECTOR };
        let mix = self.mix.iter().copied().filter(|kind| kind.weight > 0).collect();
        let pattern =
            Pattern { start_bytes, mix, align_bytes: self.align_bytes, ..Pattern::random(region_bytes, 512, 0) };
        let pace = match self.delay_ms {
            0 => Pace::ClosedLoop,
            millis => Pace::Think(Nanos::from_millis(millis)),
        };
        Job::closed_loop(&self.name, pattern, worker.depth).paced(pace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = include_str!("fixtures/two-workers.icf");

    #[test]
    fn iometer_file_is_parsed() {
        let spec = parse("x", FILE, 1 << 30).expect("a valid file");
        let names: Vec<_> = spec.steps.iter().map(|step| (step.name.as_str(), step.jobs.len())).collect();
        assert_eq!(names, [("Database", 2), ("File Server", 1)]);
        assert_eq!(spec.steps[0].time, Some(Nanos::from_secs(90)));
        let job = &spec.steps[0].jobs[0];
        assert_eq!((job.depth, job.pattern.region_bytes, job.pattern.start_bytes), (16, 1 << 30, 0));
        assert_eq!(job.pattern.mix, [AccessKind { weight: 100, bytes: 8192, read_percent: 67, random_percent: 100 }]);
        let second = &spec.steps[0].jobs[1];
        assert_eq!(
            (second.depth, second.pattern.region_bytes, second.pattern.start_bytes),
            (4, 204_800 * 512, 2048 * 512)
        );
        let files = &spec.steps[1].jobs[0].pattern;
        assert_eq!((files.mix.len(), files.mix[3].bytes, files.mix[3].weight), (8, 4096, 60));
        assert_eq!(spec.check(1 << 30, 512), Ok(()));
    }

    #[test]
    fn errors_name_their_line() {
        let error_of = |from: &str, to: &str| {
            parse("x", &FILE.replace(from, to), 1 << 30).expect_err("an invalid file").to_string()
        };
        let errors = [
            error_of("8192,100,67,100,0,1,0,0", "8192,100,67,100,0,1,0"),
            error_of("8192,100,67,100,0,1,0,0", "8192,90,67,100,0,1,0,0"),
            error_of("8192,100,67", "8k,100,67"),
            error_of("8192,100,67,100,0,1,0,0", "8192,100,67,100,5,8,0,0"),
            error_of("'Worker type\n\tDISK", "'Worker type\n\tNETWORK,TCP"),
            error_of("'Ramp Up Time (s)", "'Warp factor"),
            error_of("\tFile Server\n'End assigned", "\tWeb Server\n'End assigned"),
            parse("x", "Version 1.1.0\n", 1 << 30).expect_err("an empty file").to_string(),
        ];
        insta::assert_snapshot!(errors.join("\n"));
    }
}
