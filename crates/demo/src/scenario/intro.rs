//! The introduction of a demo: publication, scale, set-up and clients.

use lab::scenario::test_bed::Plan;
use lab::scenario::{Scenario, Setup};

use super::daemon_config;
use super::scale::Scale;
use terminal::render::style::Style;
use units::{show_bytes, show_count};

/// The introduction.
pub fn intro(scenario: &Scenario, setup: &Setup, scale: &Scale, without: &str, style: Style) -> String {
    let mut lines = vec![
        style.bold(&format!("hotset demo, {}: {}", scenario.name, scenario.title)),
        format!("Published:     {}", scenario.source),
        format!("Scale:         {}", describe_scale(scale)),
    ];
    if !scenario.demo().part.is_empty() {
        lines.push(format!("Shown:         {}", scenario.demo().part));
    }
    lines.push(format!("with hotset:   {}", describe_plan(&setup.with)));
    lines.push(format!("{:<15}{}", format!("{without}:"), describe_comparison(setup)));
    lines.push(format!("Clients:       {}", describe_phases(setup, scale)));
    if scale.is_short() {
        lines
            .push(style.warn("Less than a minute is too short for the cache to warm up as it did in the publication."));
    }
    lines.join("\n") + "\n"
}

fn describe_scale(scale: &Scale) -> String {
    let bytes = format!("file, memory, flash and disk span divided by {}", scale.byte_divisor);
    match scale.timed {
        false => format!("{bytes}; rates, latencies and durations are unchanged"),
        true => {
            let minute = scale.minute.as_secs_f64();
            let minute = if minute < 1.0 { format!("{:.0} ms", minute * 1e3) } else { format!("{minute:.1} s") };
            format!("{bytes}, and a minute is {minute}; rates and latencies are unchanged")
        }
    }
}

fn describe_plan(plan: &Plan) -> String {
    let memory_bytes = daemon_config::memory_bytes(plan);
    let minimum = if memory_bytes > plan.memory_bytes { " (the minimum of a daemon)" } else { "" };
    let mut components = vec![format!("{} of memory{minimum}", show_bytes(memory_bytes))];
    if let Some(flash) = &plan.flash {
        let devices = if flash.devices == 1 { "1 SSD".to_owned() } else { format!("{} SSDs", flash.devices) };
        components.push(format!("{devices} of {} and {} requests/s", show_bytes(flash.bytes), show_count(flash.iops)));
    }
    components.push(plan.policy.to_string());
    format!("{}, in front of {}", components.join(", "), describe_arrays(plan))
}

fn describe_arrays(plan: &Plan) -> String {
    let mut texts: Vec<(String, usize)> = Vec::new();
    for (array, bytes) in &plan.arrays {
        let memory = match array.write_cache_bytes {
            0 => String::new(),
            bytes => format!(" behind a controller with {}", show_bytes(bytes)),
        };
        let text = format!("{} on {} of {} {}{memory}", show_bytes(*bytes), array.level, array.disks, array.disk);
        match texts.last_mut() {
            Some((last, count)) if *last == text => *count += 1,
            _ => texts.push((text, 1)),
        }
    }
    let with_count =
        |(text, count): &(String, usize)| if *count == 1 { text.clone() } else { format!("{count} x {text}") };
    texts.iter().map(with_count).collect::<Vec<_>>().join(", ")
}

fn describe_comparison(setup: &Setup) -> String {
    match setup.without.cached {
        true => format!("the same with {} of memory only", show_bytes(daemon_config::memory_bytes(&setup.without))),
        false => "the same disks without a cache".to_owned(),
    }
}

/// Phases in order with their durations; repeated phases are listed once.
fn describe_phases(setup: &Setup, scale: &Scale) -> String {
    let mut texts: Vec<(String, usize)> = Vec::new();
    for phase in &setup.phases {
        let seconds = scale.minute.as_secs_f64() * phase.minutes as f64;
        let text = format!("{} {seconds:.0} s", phase.name);
        match texts.iter_mut().find(|(other, _)| *other == text) {
            Some((_, count)) => *count += 1,
            None => texts.push((text, 1)),
        }
    }
    let with_count = |(text, count): (String, usize)| if count == 1 { text } else { format!("{text} ({count} times)") };
    texts.into_iter().map(with_count).collect::<Vec<_>>().join(", ")
}
