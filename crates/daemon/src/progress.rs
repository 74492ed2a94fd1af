//! Reports of progress while a long action runs.

use std::time::Duration;

/// Interval of the reports.
const INTERVAL: Duration = Duration::from_millis(500);

/// Awaits `action`, and meanwhile calls `report` at each interval.
pub async fn report_while<T>(action: impl Future<Output = T>, report: impl AsyncFn()) -> T {
    let mut action = std::pin::pin!(action);
    let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + INTERVAL, INTERVAL);
    loop {
        tokio::select! {
            result = &mut action => return result,
            _ = tick.tick() => report().await,
        }
    }
}
