// Sizing advice: the purchases that the daemon recommends for a volume, from its miss-ratio curves.

import type { AdvicePurchase, AdviceStep, VolumeAdvice } from './types';

export type Tier = 'memory' | 'flash';

/** A purchase that is worth making for one volume. */
export interface Recommendation {
  volume: string;
  tier: Tier;
  /** Bytes of the volume in this tier at present. */
  currentBytes: number;
  /** Hit ratio of memory and flash together once both are filled, and mean read latency with it. */
  currentHits: number;
  currentLatencyUs: number;
  purchase: AdvicePurchase;
  confidence: string;
  /** Sizes of the tier above the present one with the hit ratio of its curve, ascending. */
  steps: AdviceStep[];
}

/** Why a volume has no estimate yet; null where it has one. */
export function unavailableReason({ nothing, confidence }: VolumeAdvice): string | null {
  if (nothing !== null) return nothing;
  if (confidence === 'few-accesses') return 'fewer than 10,000 block accesses or 1,000 reads';
  if (confidence === 'deviation') {
    return 'the measured hit ratio does not match the curve: the load has changed, or the cache is not warm yet';
  }
  return null;
}

/** At most one recommendation per tier; none where no purchase is worth it. */
export function recommendationsOf(advice: VolumeAdvice): Recommendation[] {
  return (['memory', 'flash'] as const).flatMap((tier) => {
    const { purchase, today, steps } = advice[tier];
    if (purchase === null) return [];
    const currentBytes = today?.size_bytes ?? 0;
    return {
      volume: advice.volume,
      tier,
      currentBytes,
      currentHits: purchase.hit_ratio_before,
      currentLatencyUs: purchase.latency_before_us,
      purchase,
      confidence: advice.confidence,
      steps: steps.filter(({ size_bytes }) => size_bytes > currentBytes),
    };
  });
}

/** Array reads saved per second and GiB bought. */
export const savedPerGib = ({ purchase }: Recommendation) =>
  (purchase.saved_reads_per_s ?? 0) / (purchase.size_bytes / 2 ** 30);
