//! The introduction of a demo: publication, scale, set-up and clients.

use lab::scenario::test_bed::Plan;
use lab::scenario::{Scenario, Setup};

use super::place;
use super::scale::Scale;
use terminal::render::style::Style;
use units::{show_bytes, show_count};

/// The introduction.
pub fn intro(scenario: &Scenario, setup: &Setup, scale: &Scale, without: &str, style: Style) -> String {
    let mut lines = vec![
        style.bold(&format!("hotset demo, {}: {}", scenario.name, scenario.title)),
        format!("Published:     {}", scenario.source),
        format!("Cut:           {}", cut(scale)),
    ];
    if !scenario.shown().part.is_empty() {
        lines.push(format!("Shown:         {}", scenario.shown().part));
    }
    lines.push(format!("with hotset:   {}", built(&setup.with)));
    lines.push(format!("{:<15}{}", format!("{without}:"), beside(setup)));
    lines.push(format!("Clients:       {}", acts(setup, scale)));
    if scale.is_short() {
        lines.push(
            style.warn("In less than a minute the cache has not the time to get as warm as it was in the publication."),
        );
    }
    lines.join("\n") + "\n"
}

fn cut(scale: &Scale) -> String {
    let bytes = format!("file, memory, flash and the span of the disks {} times", scale.cut);
    match scale.timed {
        false => format!("{bytes}; rates and latencies stay what they are, and time is not cut"),
        true => {
            let minute = scale.minute.as_secs_f64();
            let minute = if minute < 1.0 { format!("{:.0} ms", minute * 1e3) } else { format!("{minute:.1} s") };
            format!("{bytes}, and a minute is {minute}; rates and latencies stay what they are")
        }
    }
}

fn built(plan: &Plan) -> String {
    let memory_bytes = place::memory_bytes(plan);
    let least = if memory_bytes > plan.memory_bytes { " (no daemon has less)" } else { "" };
    let mut parts = vec![format!("{} of memory{least}", show_bytes(memory_bytes))];
    if let Some(flash) = &plan.flash {
        let devices = if flash.devices == 1 { "1 SSD".to_owned() } else { format!("{} SSDs", flash.devices) };
        parts.push(format!("{devices} of {} and {} requests/s", show_bytes(flash.bytes), show_count(flash.iops)));
    }
    parts.push(plan.policy.to_string());
    format!("{}, in front of {}", parts.join(", "), arrays(plan))
}

fn arrays(plan: &Plan) -> String {
    let mut told: Vec<(String, usize)> = Vec::new();
    for (array, bytes) in &plan.arrays {
        let memory = match array.controller_bytes {
            0 => String::new(),
            bytes => format!(" behind a controller with {}", show_bytes(bytes)),
        };
        let text = format!("{} on {} of {} {}{memory}", show_bytes(*bytes), array.level, array.disks, array.disk);
        match told.last_mut() {
            Some((last, count)) if *last == text => *count += 1,
            _ => told.push((text, 1)),
        }
    }
    let times = |(text, count): &(String, usize)| if *count == 1 { text.clone() } else { format!("{count} x {text}") };
    told.iter().map(times).collect::<Vec<_>>().join(", ")
}

fn beside(setup: &Setup) -> String {
    match setup.without.cached {
        true => format!("the same with {} of memory only", show_bytes(place::memory_bytes(&setup.without))),
        false => "the same disks alone".to_owned(),
    }
}

/// Acts in order with their durations; repeated acts are listed once.
fn acts(setup: &Setup, scale: &Scale) -> String {
    let mut told: Vec<(String, usize)> = Vec::new();
    for act in &setup.acts {
        let seconds = scale.minute.as_secs_f64() * act.minutes as f64;
        let text = format!("{} {seconds:.0} s", act.name);
        match told.iter_mut().find(|(other, _)| *other == text) {
            Some((_, count)) => *count += 1,
            None => told.push((text, 1)),
        }
    }
    let times = |(text, count): (String, usize)| if count == 1 { text } else { format!("{text} ({count} times)") };
    told.into_iter().map(times).collect::<Vec<_>>().join(", ")
}
